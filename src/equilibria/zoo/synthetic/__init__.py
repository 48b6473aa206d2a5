"""Problems that are drawn: adding, order and copying."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    data={"equilibria.run.data.dataset:Split": {"copy-memory": ".data.drawn:COPY_MEMORY"}},
    tasks={
        "adding": ".task.drawn:AddingProblem",
        "order": ".task.drawn:OrderProblem",
        "copy_memory": ".task.copying:CopyMemory",
    },
)
