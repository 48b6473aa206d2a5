"""Problems that are drawn: adding, order and copying."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    data={
        "equilibria.data.dataset:Split": {
            "copy-memory": "equilibria.data.copy_memory:COPY_MEMORY",
        },
    },
    tasks={
        "adding": "equilibria.tasks.synthetic:AddingProblem",
        "order": "equilibria.tasks.synthetic:OrderProblem",
        "copy_memory": "equilibria.tasks.copying:CopyMemory",
    },
)
