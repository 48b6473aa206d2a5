"""Bai 2022 (thesis), chapter 8: signals as functions of their coordinates."""

from papers.published import BAI_2022

PAPER = BAI_2022
