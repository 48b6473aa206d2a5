"""Graphs: implicit graph networks, and the classes of nodes and of whole graphs."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "eignn": ".model.configs:EIGNNConfig",
        "gcn": ".model.configs:GCNConfig",
        "graph-mlp": ".model.configs:GraphMLPConfig",
        "ignn": ".model.configs:IGNNConfig",
        "ignn-finite": ".model.configs:FiniteIGNNConfig",
        "mgnni": ".model.configs:MGNNIConfig",
    },
    data={
        ".data.sets:NodeSet": {
            "chains": ".data.synthetic:CHAINS",
            "citeseer": ".data.planetoid:CITESEER",
            "cora": ".data.planetoid:CORA",
            "ppi": ".data.ppi:PPI",
            "pubmed": ".data.planetoid:PUBMED",
        },
        ".data.sets:GraphSet": {
            "cox2": ".data.tu:COX2",
            "mutag": ".data.tu:MUTAG",
            "proteins": ".data.tu:PROTEINS",
        },
    },
    folders={
        ".data.sets:GraphSet": ".data.user:OWN_GRAPHS",
        ".data.sets:NodeSet": ".data.user:OWN_NODES",
    },
    tasks={
        "node_classification": ".task.nodes:NodeClassification",
        "graph_classification": ".task.whole_graphs:GraphClassification",
        "chains": ".task.nodes:Chains",
    },
)
