"""Bai 2022 (thesis), chapter 8: signals as functions of their coordinates."""
