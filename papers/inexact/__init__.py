"""How exact must a gradient be? Bai 2022 (thesis), chapter 5."""
