"""The version that the SDK and the wheel carry; a test holds it to waybill_version()."""

VERSION = "0.1.0"
