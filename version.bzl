# SPDX-License-Identifier: Apache-2.0
"""The version of Waybill, written once.

Bazel takes it from here for the library, the command and the SDK. cargo and pip want it in files of their own, which
//testing/presubmit compares with this one.
"""

VERSION = "0.1.0"
