"""How exact must a gradient be? Bai 2022 (thesis), chapter 5."""

from papers.published import BAI_2022

PAPER = BAI_2022
