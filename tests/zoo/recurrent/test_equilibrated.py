"""What equilibrated cells compute, and what the one at equilibrium cannot."""

import pytest
import torch

import equilibria as eq
from equilibria.zoo.recurrent.model import ERNN, ImplicitERNN, ImplicitEulerRNN, SpectralRNN

TIGHT = {
    "solver": eq.Picard(rtol=1e-12, max_evals=1000),
    "adjoint": eq.Implicit(linear=eq.Neumann(rtol=1e-12, max_evals=1000)),
}


def sequences(time: int = 6, batch: int = 3, channels: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(time, batch, channels, generator=generator).double()


def ernn(**options) -> ERNN:
    torch.manual_seed(0)
    return ERNN(2, 5, dtype=torch.float64, **options)


def implicit(**options) -> ImplicitERNN:
    torch.manual_seed(0)
    return ImplicitERNN(2, 5, dtype=torch.float64, layer=TIGHT, **options)


def transition_jacobian(layer, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """dh_k/dh_(k-1) of one step, (hidden, hidden)."""
    return torch.autograd.functional.jacobian(lambda h: layer.step(x, h)[1].flatten(), state)[
        :, 0, 0
    ]


class TestTheEulerSteps:
    @pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
    @pytest.mark.parametrize(
        ("start", "tau"),
        [("zero", -1), ("previous", -1), ("zero", 1), ("previous", 1), ("previous", 0)],
    )
    @pytest.mark.parametrize("gamma", [1.0, 1.5])
    def test_are_those_of_equation_11(self, activation, start, tau, gamma):
        layer = ernn(
            steps=3, start=start, transition=tau, activation=activation, step_size=0.3, gamma=gamma
        )
        cell, x = layer.cells[0], sequences(2, 1)
        phi = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
        before = torch.linspace(-1, 1, 5).double()[None]
        h = torch.zeros(1, 5).double() if start == "zero" else before
        for _ in range(3):
            shifted = h - tau * before
            f = phi(shifted @ cell.f.U.t() + x[0] @ cell.injection.weight.t() + cell.injection.bias)
            h = h + 0.3 * (f - gamma * shifted)
        torch.testing.assert_close(layer.step(x[0], before[None])[0], h)

    def test_the_low_rank_cell_is_equation_10(self):
        layer = ernn(rank=2, start="zero", step_size=0.5)
        cell, x = layer.cells[0], sequences(1, 3)[0]
        before = torch.randn(3, 5).double()
        P = torch.eye(5) + cell.f.V @ cell.f.H
        inner = before @ P.t() + x @ cell.injection.weight.t() + cell.injection.bias
        expected = 0.5 * (torch.relu(inner @ P.t()) - before)
        torch.testing.assert_close(layer.step(x, before[None])[0], expected)
        assert sum(p.numel() for p in layer.parameters()) == 2 * 5 * 2 + 5 * 2 + 5 + 1

    def test_a_deep_transition_is_a_stack_of_layers(self):
        layer = ernn(depth=3, start="zero", step_size=1.0)
        cell, x = layer.cells[0], sequences(1, 3)[0]
        s = torch.relu(x @ cell.injection.weight.t() + cell.injection.bias)
        for matrix in list(cell.f.maps)[1:]:
            s = torch.relu(s @ matrix.t())
        torch.testing.assert_close(layer.step(x)[0], s)

    def test_step_sizes_of_their_own_for_each_step_of_time(self):
        layer = ernn(times=6, steps=2)
        assert layer.cells[0].step_sizes.shape == (6, 2)
        x = sequences()
        y = layer(x)[0]
        with torch.no_grad():
            layer.cells[0].get_parameter("step_sizes")[4] += 0.1
        z = layer(x)[0]
        torch.testing.assert_close(z[:4], y[:4])
        assert (z[4] != y[4]).any()
        state = None
        for k, step in enumerate(x):
            out, state = layer.step(step, state, time=k)
            torch.testing.assert_close(out, z[k])
        with pytest.raises(ValueError, match="step sizes for 6 steps of a sequence"):
            layer(sequences(7))

    def test_they_lead_to_the_equilibrium(self):
        explicit = ernn(steps=400, start="zero", step_size=0.2, bound=0.9)
        solved = implicit()
        solved.cells[0].injection.load_state_dict(explicit.cells[0].injection.state_dict())
        solved.cells[0].function().load_state_dict(explicit.cells[0].f.state_dict())
        torch.testing.assert_close(explicit(sequences())[0], solved(sequences())[0])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"start": "zero", "transition": 0}, "without memory"),
            ({"rank": 6}, "rank is 6, and the state has 5 entries"),
            ({"depth": 2, "rank": 2}, None),
            ({"step_size": float("nan")}, "step_size"),
            *(({name: 0}, name) for name in ("steps", "gamma", "rank", "times")),
            *(({"bound": -1.0}, None), ({"transition": 2}, None)),
            *(({"start": "zeros"}, None), ({"activation": "gelu"}, None)),
        ],
    )
    def test_impossible_options_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            ernn(**options)

    def test_results_name_the_start_and_the_steps(self):
        assert ernn(steps=3, start="zero").cell_options.title == "ERNN (K = 3, start zero)"
        assert ernn().cell_options.title == "ERNN (K = 1, start previous)"
        assert ernn(transition=1).cell_options.title == "ERNN (K = 1, start previous, -h_(k-1))"
        other = "ERNN (K = 1, start previous, without h_(k-1))"
        assert ernn(transition=0).cell_options.title == other


class TestAtEquilibrium:
    @pytest.mark.parametrize("tau", [-1, 1, 0])
    @pytest.mark.parametrize(
        "options", [{}, {"depth": 2}, {"rank": 2}, {"gamma": 1.3}, {"activation": "tanh"}]
    )
    def test_the_gradient_is_kept_exactly(self, tau, options):
        """Lemma 1: dh_k/dh_(k-1) = -I; +I with -h_(k-1), 0 without the shift."""
        layer = implicit(transition=tau, **options)
        state = torch.randn(1, 1, 5).double()
        found = transition_jacobian(layer, sequences(1, 1)[0], state)
        torch.testing.assert_close(found, tau * torch.eye(5).double())

    @pytest.mark.parametrize("tau", [-1, 1, 0])
    def test_all_steps_in_one_solve_are_the_steps_one_by_one(self, tau):
        layer, x = implicit(transition=tau), sequences()
        swept = layer.sweep(x, torch.randn(1, 3, 5).double())
        assert len(swept.solutions) == 1 and swept.solutions[0].stats.evals.shape == (18,)
        assert (swept.solutions[0].status == eq.Status.CONVERGED).all()
        state = torch.randn(1, 3, 5).double()
        whole, end = layer(x, state)
        for k, step in enumerate(x):
            y, state = layer.step(step, state)
            torch.testing.assert_close(y, whole[k])
        torch.testing.assert_close(state, end)

    def test_nothing_is_solved_for_after_the_end_of_a_sequence(self):
        lengths = torch.tensor([2, 6, 1])
        swept = implicit().sweep(sequences(), None, lengths)
        assert swept.solutions[0].stats.evals.shape == (9,)

    def test_the_state_is_an_alternating_sum_of_equilibria_of_single_steps(self):
        layer, x = implicit(), sequences()
        before = torch.randn(1, 3, 5).double()
        singles = [layer(step[None])[0][0] for step in x]
        T = len(x)
        expected = (-1) ** T * before[0] + sum(
            (-1) ** (T - k) * z for k, z in enumerate(singles, 1)
        )
        torch.testing.assert_close(layer(x, before)[1][0], expected)

    def test_it_cannot_tell_the_order_of_inputs_an_even_number_of_steps_apart(self):
        x = sequences(20)
        shuffled = x.clone()
        even = torch.arange(0, 20, 2)
        shuffled[even] = x[even[torch.randperm(10, generator=torch.Generator().manual_seed(0))]]

        def change(layer) -> float:
            with torch.no_grad():
                one, other = layer(x)[1], layer(shuffled)[1]
            return float((one - other).norm() / one.norm())

        assert change(implicit()) < 1e-9
        assert change(ernn(steps=200, start="zero", step_size=0.3, bound=0.9)) < 1e-9
        assert change(ernn(steps=5, start="zero", step_size=0.3, bound=0.9)) > 0.1

    def test_second_derivatives_are_finite_differences_too(self):
        layer = ImplicitERNN(1, 2, dtype=torch.float64, layer=TIGHT, activation="tanh")
        x = sequences(2, 1, 1)

        def function(*values):
            names = (name for name, _ in layer.named_parameters())
            named = dict(zip(names, values, strict=True))
            return torch.func.functional_call(layer, named, (x,))[1]

        inputs = [p.detach().requires_grad_() for p in layer.parameters()]
        assert torch.autograd.gradgradcheck(function, inputs, atol=1e-5, fast_mode=True)

    def test_the_bound_holds_for_any_weights(self):
        layer = implicit(bound=0.5)
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(100)
        (matrix,) = layer.cells[0].weights()
        assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(0.5)

    def test_a_bounded_matrix_of_zeros_has_a_gradient(self):
        layer = implicit(bound=0.5)
        with torch.no_grad():
            layer.cells[0].function().U.zero_()
        layer(sequences())[0].sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


class TestTheImplicitEulerStep:
    def test_solves_equation_4(self):
        torch.manual_seed(0)
        layer = ImplicitEulerRNN(2, 5, step_size=0.3, dtype=torch.float64, layer=TIGHT)
        cell, x = layer.cells[0], sequences(1, 3)[0]
        before = torch.randn(3, 5).double()
        h, _ = layer.step(x, before[None])
        U = cell.deq.cell.f.U
        u = x @ cell.injection.weight.t() + cell.injection.bias
        torch.testing.assert_close(h, before + 0.3 * torch.tanh(h @ U.t() + u))
        found = transition_jacobian(layer, x[:1], before[None, :1])
        slope = 1 - torch.tanh(h[0] @ U.t() + u[0]) ** 2
        expected = torch.linalg.inv(torch.eye(5) - 0.3 * slope[:, None] * U)
        torch.testing.assert_close(found, expected.detach())

    def test_is_the_limit_of_the_iterations_of_equation_5(self):
        torch.manual_seed(0)
        solved = ImplicitEulerRNN(2, 5, dtype=torch.float64, layer=TIGHT)
        iterated = ImplicitEulerRNN(2, 5, steps=60, dtype=torch.float64)
        iterated.cells[0].injection.load_state_dict(solved.cells[0].injection.state_dict())
        iterated.cells[0].iterated.load_state_dict(solved.cells[0].deq.cell.state_dict())
        torch.testing.assert_close(iterated(sequences())[0], solved(sequences())[0])


@pytest.mark.parametrize(
    ("cell", "options"), [(ImplicitEulerRNN, {"steps": 0}), (SpectralRNN, {"reflections": 0})]
)
def test_zero_is_not_taken_for_the_default(cell, options):
    with pytest.raises(ValueError, match="must be positive, or be null; got 0"):
        cell(2, 5, **options)
