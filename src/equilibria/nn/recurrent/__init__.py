"""Recurrent layers: cells, which are one step in time, and layers like `torch.nn.LSTM` of them."""
