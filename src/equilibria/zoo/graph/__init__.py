"""Graphs: implicit graph networks, and the classes of nodes and of whole graphs."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "eignn": "equilibria.models.graph.configs:EIGNNConfig",
        "gcn": "equilibria.models.graph.configs:GCNConfig",
        "graph-mlp": "equilibria.models.graph.configs:GraphMLPConfig",
        "ignn": "equilibria.models.graph.configs:IGNNConfig",
        "ignn-finite": "equilibria.models.graph.configs:FiniteIGNNConfig",
        "mgnni": "equilibria.models.graph.configs:MGNNIConfig",
    },
    data={
        "equilibria.data.graphs.sets:NodeSet": {
            "chains": "equilibria.data.graphs.synthetic:CHAINS",
            "citeseer": "equilibria.data.graphs.planetoid:CITESEER",
            "cora": "equilibria.data.graphs.planetoid:CORA",
            "ppi": "equilibria.data.graphs.ppi:PPI",
            "pubmed": "equilibria.data.graphs.planetoid:PUBMED",
        },
        "equilibria.data.graphs.sets:GraphSet": {
            "cox2": "equilibria.data.graphs.tu:COX2",
            "mutag": "equilibria.data.graphs.tu:MUTAG",
            "proteins": "equilibria.data.graphs.tu:PROTEINS",
        },
    },
    folders={
        "equilibria.data.graphs.sets:GraphSet": "equilibria.data.graphs.user:OWN_GRAPHS",
        "equilibria.data.graphs.sets:NodeSet": "equilibria.data.graphs.user:OWN_NODES",
    },
    tasks={
        "node_classification": "equilibria.tasks.nodes:NodeClassification",
        "graph_classification": "equilibria.tasks.whole_graphs:GraphClassification",
        "chains": "equilibria.tasks.nodes:Chains",
    },
)
