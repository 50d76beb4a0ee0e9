"""Sparse tensors: an encoder's embeddings, a sum of rows, and weights that are trained at given places."""

import sys

import torch

ROWS, COLUMNS = 64, 4096
ELEMENT = 8 + 8 + 4  # a row, a column, a value


def taken(before: int) -> int:
    return torch.cuda.memory_allocated() - before


before = torch.cuda.memory_allocated()
known = (torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) % 4 == 0).cuda().float()
at_start = torch.cuda.memory_allocated()
quarter = known.to_sparse()
assert (quarter.layout, quarter.is_sparse, quarter._nnz()) == (torch.sparse_coo, True, ROWS * COLUMNS // 4)
assert taken(at_start) == ROWS * COLUMNS // 4 * ELEMENT
assert quarter.to_sparse_csr().crow_indices().tolist() == [COLUMNS // 4 * row for row in range(ROWS + 1)]
assert quarter.to_dense().shape == known.shape
assert quarter[5]._nnz() == COLUMNS // 4

embeddings = torch.empty(ROWS, COLUMNS, device="cuda").relu()  # nobody knows which are zero
sparse = embeddings.to_sparse()
assert sparse._nnz() == ROWS * COLUMNS
rows = list(sparse)
assert {row._nnz() for row in rows} == {COLUMNS}
together = torch.stack(rows).coalesce()
assert (together.shape, together._nnz(), together.is_coalesced()) == (sparse.shape, ROWS * COLUMNS, True)
scores = (together * sparse).sum(dim=-1)
assert scores._nnz() == ROWS
assert scores.to_dense().cpu().shape == (ROWS,)
assert sparse.cpu().to_dense().shape == sparse.shape

twice = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.ones(3), (2, 3)).cuda()
assert not twice.is_coalesced() and twice.coalesce().indices().tolist() == [[0, 1], [2, 0]]
if sys.argv[1:] == ["product"]:
    assert torch.mm(together, sparse.transpose(0, 1)).to_dense().shape == (ROWS, ROWS)

places = torch.stack([torch.arange(64), torch.arange(64)]).cuda()
trained = torch.nn.Parameter(torch.ones(64, device="cuda"))  # as peft's SHiRA
table = torch.nn.Embedding(1000, 8, sparse=True).cuda()
optimizers = torch.optim.Adam([trained]), torch.optim.SparseAdam(table.parameters())
for _ in range(4):
    weight = torch.ones(64, 64, device="cuda")
    weight += torch.sparse_coo_tensor(places, trained * 2.0, weight.shape)
    words = table(torch.tensor([[1, 2, 2]], device="cuda"))
    ((torch.ones(2, 64, device="cuda") @ weight).sum() + words.sum()).backward()
    assert trained.grad.shape == (64,) and table.weight.grad._nnz() == 3
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
