"""Misprints and errors of Agarwala and Schoenholz 2022 that the formulas here correct.

Each was derived anew, and what can be measured was: `check` names the test that does so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """One thing that stands wrong in the paper.

    Attributes:
        equation: its number, or the section.
        printed: what stands there.
        right: what should.
        why: the reason, and what tells the two apart.
        check: name of the test that measures it; empty where there is nothing to measure.
    """

    equation: str
    printed: str
    right: str
    why: str
    check: str = ""


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        equation="7",
        printed="Var[(z_t)_i] = (x·x/N) Σ_{k=1}^{t} V^t",
        right="Var[(z_t)_i] = (x·x/N) Σ_{k=1}^{t-1} V^k",
        why="The power is the summand's, and from z_0 = 0 there are t terms with the input's own: "
        "so eq. 48 says, (1 - V^t)/(1 - V).",
        check="test_moment_after_some_steps",
    ),
    Erratum(
        equation="before 11",
        printed="tr W^k = C_k V^k",
        right="tr W^{2k} = C_k V^k, and 0 for odd powers",
        why="Eq. 61 has it right; C_k is the k-th Catalan number.",
    ),
    Erratum(
        equation="11, 64-66",
        printed="1/s - (1 - s)/(2V) - 1, s = √(1 - 4V); in eq. 64, 1/(2V s)",
        right="(x·x/N) (2/s - (1 - s)/(2V) - 1); in eq. 64, 1/(V s)",
        why="The derivative of the Catalan numbers' generating function lost a factor 2. As "
        "printed the variance is negative. It is that of z*_i, not of its square.",
        check="test_printed_goe_variance_is_negative",
    ),
    Erratum(
        equation="12, 67",
        printed="σ² = (1/N) E Var_x[z·z]",
        right="σ² = (1/N²) E Var_x[z·z]",
        why="Eq. 13 to 20 hold for the latter, tr being the average eigenvalue.",
        check="test_definition_of_length_variance",
    ),
    Erratum(
        equation="14, 76",
        printed="σ² = (2/N) (2/(1-V)² + 1/(1-V²)² - 2/(1-V²)), Gaussian and GOE untied",
        right="σ² = (2/N) (1 + 4Vb + V²b²)/(1-V²), b = 1/(1-V), Gaussian; GOE has 2V more in the "
        "first bracket",
        why="Eq. 74 takes products of different lengths as free of each other. They share their "
        "first factors, whose spread of singular values counts; and tr W² of the GOE is V, so "
        "that products of unlike pairs contribute too. The orthogonal eq. 15, 77 is right.",
        check="test_untied_length_variance",
    ),
    Erratum(
        equation="section 2.2.3, A.4.1",
        printed="untied, the divergence is O(δ^-2) irrespective of the ensemble",
        right="O(δ^-2) for the orthogonal ensemble, O(δ^-3) for Gaussian and GOE",
        why="V²b²/(1 - V²) of the formula above.",
        check="test_exponents_are_the_formulas_slopes",
    ),
    Erratum(
        equation="section 2.2.3",
        printed="fluctuations of the largest eigenvalue are small for N ≫ δ^(-2/3)",
        right="N ≫ δ^(-3/2) for the GOE; N ≫ δ^-2 for Gaussian W",
        why="Tracy-Widom fluctuations of the edge are of size N^(-2/3), to be compared with δ. "
        "The eigenvalues of a Gaussian W are not of that class: its edge is blurred by N^(-1/2).",
        check="test_edge_of_goe_fluctuates_like_tracy_widom",
    ),
    Erratum(
        equation="20",
        printed="(1/(2V)) (1/(1-4V)^(-5/2) - 1/(1-4V)^(-3/2))",
        right="(1/(2V)) ((1-4V)^(-5/2) - (1-4V)^(-3/2)) = 2 (1-4V)^(-5/2)",
        why="The sign of the exponents stands twice: as printed it vanishes at V_c. Eq. 148, half "
        "of it, is right.",
        check="test_printed_goe_length_variance_vanishes",
    ),
    Erratum(
        equation="25",
        printed="σ_h² = V σ_φ² + 2C + σ_x², as our text of the paper has it",
        right="σ_h² = V (σ_φ² + 2C + σ_x²)",
        why="So it follows from eq. 28. Large brackets are lost in the text that we have, and may "
        "be in print.",
        check="test_theorem_3_1_and_the_reaction",
    ),
    Erratum(
        equation="38",
        printed="the largest eigenvalue of (W^n)^T W^n is bounded by n V^n",
        right="it goes to V^n (n+1)^(n+1)/n^n, which is about e (n + 1/2) V^n",
        why="The edge of the Fuss-Catalan law; n = 1 gives 4V. By itself it changes a constant.",
        check="test_largest_singular_value_of_powers",
    ),
    Erratum(
        equation="39, 40, Lemma A.1",
        printed="|z*_i - (z_t)_i|² ≤ ||z* - z_t||², about t V^t x·x, and t_c without N",
        right="in probability, |z*_i - (z_t)_i|² is at most of the order t V^t (x_i² + x·x/N)",
        why="One unit is bounded by the sum over all: with x·x of order N, the t_c that eq. 40 "
        "gives grows like log N, while Theorem A.2 keeps t and lets N grow. As we read it the "
        "lemma holds, by another step: rotations that fix x leave the law of W alone, so that the "
        "part of z* - z_t across x has the same mean square, ||z* - z_t||²/(N-1) or less, in every "
        "direction; the part along x brings the term x_i²; then Markov's inequality.",
        check="test_one_unit_has_its_share_of_the_error",
    ),
    Erratum(
        equation="42-46",
        printed="P(z*_i < z) ≥ (1 - δ) (P((z_t)_i < z) + Bε), and ≤ (P((z_t)_i < z) + Bε)/(1 - δ)",
        right="P((z_t)_i < z) - Bε - δ ≤ P(z*_i < z) ≤ P((z_t)_i < z) + Bε + δ",
        why="That the two are close with probability 1 - δ says nothing of how probable it is "
        "given that (z_t)_i < z - ε: δ is to be subtracted, the factors 1 - δ do not follow. Eq. "
        "44 has also the sign of Bε wrong. Eq. 46 stands, with δ + Bε.",
    ),
    Erratum(
        equation="47, 48",
        printed="mean x_i and second moment x·x/(N(1 - V))",
        right="mean x_i and variance V x·x/(N(1 - V)), a second moment of x_i² + V x·x/(N(1 - V))",
        why="True on the average over units alone; eq. 8 is right.",
        check="test_units_are_gaussian",
    ),
    Erratum(
        equation="51",
        printed="σ_t² = (V^t/(1-V) - 1) x·x/N",
        right="σ_t² = ((1 - V^t)/(1-V) - 1) x·x/N",
        why="From eq. 48; as printed it is negative for many steps.",
        check="test_moment_after_some_steps",
    ),
    Erratum(
        equation="59, 60, 63, 66",
        printed="(1/N) E[z*·z*] = E tr Σ ... = 1/(1-V), and the like",
        right="E[z*·z*]/(x·x) = E tr Σ ... = 1/(1-V), and the like",
        why="x·x/N is missing on the right; eq. 57 and 58 have it.",
        check="test_second_moment",
    ),
    Erratum(
        equation="68",
        printed="σ² = (1/N) E tr (M^T M)² σ_x⁴",
        right="σ² = (2/N) E tr (M^T M)² σ_x⁴",
        why="Lemma 2.2, eq. 13: the variance of a squared Gaussian is 2.",
        check="test_definition_of_length_variance",
    ),
    Erratum(
        equation="after 66, A.4.2",
        printed="divergence at √V = 1/2; then V = 1/2 - δ",
        right="√V = 1/2 - δ",
        why="V there is its root; elsewhere δ is 1 - V/V_c.",
    ),
    Erratum(
        equation="80-82",
        printed="σ²(∞) = (2/π) ∫ √(1-x²) (1 - 2√V x)^-4 dx",
        right="the right-hand side is tr (I-W)^-4 = (1-4V)^(-5/2); N σ²(∞) is twice that",
        why="The semicircle's density has the factor 2/π already.",
        check="test_goe_integral_is_the_trace",
    ),
    Erratum(
        equation="86",
        printed="(1/8) δ^(-5/2), δ = 1/2 - √V",
        right="(1/32) δ^(-5/2) for the trace, (1/16) δ^(-5/2) for N σ²",
        why="The integral of eq. 85 is π/16; and (1 - 4V)^(-5/2) is (4δ)^(-5/2) for small δ.",
        check="test_goe_integral_is_the_trace",
    ),
    Erratum(
        equation="after 86",
        printed="the squared second moment only scales as δ^-2",
        right="that of the GOE as δ^-1",
        why="Its second moment scales as δ^(-1/2). The conclusion stands.",
        check="test_exponents_are_the_formulas_slopes",
    ),
    Erratum(
        equation="93",
        printed="∂f/∂W = (I - φ'(z*)∘W)^-T v (φ'(z*)∘z*)^T",
        right="∂f/∂W = D (I - D W)^-T v z*^T, D = diag φ'(h*), h* = W z*",
        why="dz* = (I - D W)^-1 D dW z*: the slope stands before dW, and is taken at what φ is "
        "applied to.",
        check="test_derivative_with_respect_to_weights_has_d_on_the_jacobian",
    ),
    Erratum(
        equation="95",
        printed="E tr((I - φ'∘W)^-T (I - φ''∘W)^-1) (φ'∘z*)·(φ''∘z'*)",
        right="E tr((I - D W)^-1 D D' (I - D' W)^-T) z*·z'*",
        why="From eq. 93 as it should be.",
        check="test_kernels_of_wide_networks",
    ),
    Erratum(
        equation="108, 109, 115, 116",
        printed="M_W^-1(z) = √(z + 1/z), and (z + 1/z) in what follows",
        right="M_W^-1(z) = √z + 1/√z, which is √(z + 2 + 1/z); S_W(z) = 1/√z",
        why="From eq. 107, (z + 1)²/z. Eq. 117 is right.",
        check="test_spectrum_of_goe_behind_hard_tanh",
    ),
    Erratum(
        equation="122-124",
        printed="M = -p - (z² - z √(z² - 4p))/2, G = (1 - p)/z - (z - √(z² - 4p))/2",
        right="M = -p + (z² - z √(z² - 4p))/2, G = (1 - p)/z + (z - √(z² - 4p))/2",
        why="From eq. 121. Far out M must vanish and G be 1/z. The spectrum that is read from it "
        "is right.",
        check="test_spectrum_of_goe_behind_hard_tanh",
    ),
    Erratum(
        equation="128",
        printed="G(Λ)_11 = tr[z + V P^-1 Q]",
        right="G(Λ)_11 = tr[(z + V P^-1 Q)^-1]",
        why="The inverse is missing, as the right-hand side shows.",
    ),
)
"""In the order of the paper."""


def errata_table() -> str:
    """Return the errata as a table in Markdown."""
    rows = [["Equation", "Printed", "Right", "Why"], ["---"] * 4]
    rows += [[each.equation, each.printed, each.right, each.why] for each in ERRATA]
    cells = ([cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
