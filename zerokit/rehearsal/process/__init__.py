"""What runs inside of the rehearsed process: the fake GPU and the libraries' adapters. Needs PyTorch."""
