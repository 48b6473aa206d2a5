"""What `report` and `doctor` say is true of the run: a test of sentences on eight runs."""

import re
from html.parser import HTMLParser

import pytest
from eight_runs import constructed
from rich.console import Console

from equilibria.run.cli import doctor
from equilibria.run.cli.main import main

pytestmark = pytest.mark.usefixtures("drawn_once")

RUNS = ("nothing", "half", "broken", "epoch", "explicit", "several", "perfect", "interrupted")

NEVER = (
    r"(?<!=)\b(nan|inf|None|null)\b(?! of)",
    r"\b1 (evaluations|epochs|samples|starts)\b",
    "best states found",
    "by heart",
    r"\bneed",
    "Depth found",
    r"evaluations a (sample|digit)",
)
"""In no run: numbers that are none, plurals of one, claims that no measurement bears out."""

SOLUTION = (
    "at the solution",
    "solved to tolerance",
    "attracts?, but",
    "the fixed point.* attracts",
    "at z\\*",
    "the depth is used",
    "until it converged",
    "within 0.5 % of a full solve",
)
"""What can be said only where solves converged."""

TREND = ("(Both|test) curve", "climb", "from epoch to epoch", "should fall", "overfit", r"\bgap\b")

SOLVER = (
    "solver",
    "Solving",
    "converge",
    "fixed point (can|attracts)",
    "evaluations",
    "spectral",
    "Backward",
    "equilibrium network has",
    "Glossary",
    "MAX_EVALS",
    "doctor",
    "examined",
)

ON_PAGE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # what the page says, and what it does not
    "nothing": (
        (
            "No test solve converged",
            "which are not fixed points",
            "Converged 0 % of the test solves reached the tolerance; 100 % MAX_EVALS",
            "until its solver gave up",
            "where the solver stopped, at no solution",
            "at the end of each solve",
            "0 of 8 samples reached",
            "There is no exact gradient",
        ),
        (*SOLUTION, "cosine", "ordinary layer"),
    ),
    "half": (
        (
            "50 % of the test solves converged: the figures are over all samples",
            "until it converged or its solver gave up",
            "4 of 8 samples reached the tolerance",
            "At the solutions of the 50 % of the samples that converged",
            "the 50 % of the samples that converged again reached the same answer",
            "over the samples that converged",
            "where the solves end, of which 50 % converged",
            "There is no exact gradient",
        ),
        ("at the solution[,; ]", "solved to tolerance", r"at z\*", "full solve", "8 of 8 samples"),
    ),
    "broken": (
        (
            "The loss was NaN or infinite in 2 epochs, the first of them epoch 2",
            "The loss on the test data is NaN or infinite",
            "Every test solve ended in NaN or infinity",
            "The weights hold NaN or infinity (cell.gain)",
            "nothing else was examined",
        ),
        (*SOLUTION, "Test accuracy", "cosine", "Uniqueness", "Sensitivity", "ordinary layer"),
    ),
    "epoch": (
        ("After one epoch there is one value each.", "for 1 epoch", "8 of 8 samples reached"),
        TREND,
    ),
    "explicit": (("This network solves for no fixed point", "Test accuracy", "90.00 %"), SOLVER),
    "several": (
        (
            "100 % of the samples reached another solution",
            "they have several fixed points",
            "the fixed point that was reached attracts",
        ),
        ("reached the same answer", "the fixed point attracts"),
    ),
    "perfect": (
        (
            "Converged 100 %",
            "per test sample until it converged",
            "of the Jacobian at the solutions",
            "solved to tolerance",
            "8 of 8 samples reached the tolerance",
            "the fixed point attracts",
            "every sample reached the same answer",
            "cosine 1.0000",
            "the depth is used",
            "stop after 3 evaluations: within 0.5 % of a full solve",
        ),
        ("not finished", "NaN or infinity\\.", "not examined", "unhealthy", "ordinary layer"),
    ),
    "interrupted": (
        (
            "Training has not finished: this is the state after epoch 3 of 10.",
            "There is no final evaluation: the figures are those of the test data after the last",
            "The run was not examined: --no-doctor skipped it; make up for it with equilibria",
        ),
        ("findings", "Effect of depth", "Residual against"),
    ),
}

BY_THE_DOCTOR: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # the severity, what the doctor prints, and what it does not
    "nothing": (
        "unhealthy",
        ("No solve converged; where they ended", "accuracy where the solver stops"),
        (*SOLUTION, "cosine", "distance between answers", "Ritz", "ordinary layer"),
    ),
    "half": (
        "unhealthy",
        ("the same of what converged", "accuracy where the solver stops"),
        ("accuracy at the solution", "cosine", "Ritz"),
    ),
    "broken": (
        "unhealthy",
        ("The weights hold NaN or infinity",),
        (*SOLUTION, "gradient of", "radius"),
    ),
    "epoch": ("healthy", ("accuracy after 1 evaluation ",), ()),
    "several": ("unhealthy", ("several fixed points", "distance between answers"), ()),
    "perfect": (
        "healthy",
        (
            "accuracy at the solution",
            "gradient of the parameters: cosine",
            "distance between answers",
        ),
        ("watch", "unhealthy"),
    ),
}


@pytest.fixture(scope="module")
def runs():
    return constructed()


class Words(HTMLParser):
    """What a reader sees of a page: its text, without the style and the recipe."""

    def __init__(self, html):
        super().__init__()
        self.hidden, self.found = False, list[str]()
        self.feed(html)
        self.text = " ".join(" ".join(self.found).split())

    def handle_starttag(self, tag, attrs):
        self.hidden |= tag in ("style", "pre")

    def handle_endtag(self, tag):
        self.hidden &= tag not in ("style", "pre")

    def handle_data(self, data):
        if not self.hidden:
            self.found.append(data)


def check(text, said, unsaid):
    """Fail where a sentence is missing, or a pattern of one is there."""
    assert [each for each in said if each not in text] == [], text
    found = [
        text[max(0, m.start() - 60) : m.end() + 60] for p in unsaid if (m := re.search(p, text))
    ]
    assert found == []


def test_there_are_eight_runs(runs):
    assert tuple(runs) == RUNS == tuple(ON_PAGE)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_says_what_was_measured_and_no_more(runs, name, tmp_path):
    folder = runs[name].write(tmp_path / "digits")
    assert main(["report", str(folder), "--no-doctor"]) == 0
    page = Words((folder / "report.html").read_text()).text
    said, unsaid = ON_PAGE[name]
    check(page, said, (*NEVER, *unsaid))


@pytest.mark.parametrize("name", BY_THE_DOCTOR)
def test_the_doctor_says_what_was_measured_and_no_more(runs, name, capsys):
    examination = runs[name].examination
    severity, said, unsaid = BY_THE_DOCTOR[name]
    assert examination.severity == severity
    doctor.show(examination, Console(width=1000), {})
    check(" ".join(capsys.readouterr().out.split()), said, (*NEVER, *unsaid))


def test_a_page_of_all_eight_names_the_run_of_each_remark(runs, tmp_path):
    folders = [str(run.write(tmp_path / name)) for name, run in runs.items()]
    out = tmp_path / "all.html"
    assert main(["report", *folders, "--out", str(out), "--no-doctor"]) == 0
    page = Words(out.read_text()).text
    said = (
        "nothing. No test solve converged",
        "half. 50 % of the test solves converged",
        "broken. The loss was NaN",
        "interrupted. Training has not finished",
        "the others solve for no fixed point",
    )
    check(page, said, NEVER)
