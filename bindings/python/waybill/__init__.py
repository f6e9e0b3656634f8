"""Waybill moves updated model weights from trainers to inference workers."""

from waybill._waybill import version

__all__ = ["version"]
__version__ = version()
