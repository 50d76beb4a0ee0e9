"""Values that come from data are answered truly on the fake GPU."""

import io
from pathlib import Path

import torch

ids = torch.tensor([[5, 9, 0, 0], [7, 0, 0, 0]], device="cuda")
mask = ids != 0
assert mask.sum().item() == 3
assert mask.any(-1).all().item() is True
assert ids[mask].shape == (3,)
assert ids[mask].tolist() == [5, 9, 7]
assert torch.nonzero(mask).tolist() == [[0, 0], [0, 1], [1, 0]]
with torch.inference_mode():  # composite operators come whole: is_nonzero, linear
    assert not bool(mask.all())
    assert bool(mask.any())
    half = torch.ones(2, 2, device="cuda", dtype=torch.bfloat16)
    assert torch.nn.functional.linear(half, half).shape == (2, 2)
view = ids[0]
view[2] = 4
assert ids.tolist() == [[5, 9, 4, 0], [7, 0, 0, 0]]
assert ids.unique().tolist() == [0, 4, 5, 7, 9]
assert int(ids.argmax()) == 1
ids[1] = torch.empty(4, device="cuda").mul(2).to(torch.long)  # unknown from here on, in every view
assert ids.cpu().shape == (2, 4)
images = torch.ones(2, 4, 3, 64, 64)  # Idefics sorts out those that are all zeros
images[1, 2:] = 0.0
images = images.cuda().to(torch.bfloat16).view(8, 3, 64, 64)
present = (images == 0.0).sum(dim=(-1, -2, -3)) != images.shape[1:].numel()
assert present.view(2, 4).sum(dim=1).tolist() == [4, 2]
assert images[present].shape[0] == 6
inside = (
    (torch.arange(5 << 20) % 7 < 5).view(20, 512, 512).cuda()
)  # pixels that are no padding, of 20 pictures
kept = inside[torch.tensor([True, False] * 10, device="cuda")].unfold(1, 16, 16).unfold(2, 16, 16)
patches = kept.sum(dim=(-1, -2)) > 0
assert patches.shape == (10, 32, 32) and bool(patches.all())
images.mul_(torch.empty_like(images))  # unknown from here on
assert images[(images == 0.0).flatten(1).all(-1)].shape[0] == 8
shape = torch.empty(8, dtype=torch.int32, device="cuda")  # DeepSpeed's pipelines send shapes so
shape[:3].copy_(torch.tensor([4, 2, 6], dtype=torch.int32))
assert shape[:3].tolist() == [4, 2, 6]
shape[3:] = torch.empty(5, device="cuda").mul(2).to(torch.int32)
assert shape[0].item() != 4  # not known any more
for number in (1, 0):
    torch.cuda.set_device(number)
    assert torch.cuda.current_device() == torch.empty(1, device="cuda").device.index == number
    assert torch.zeros(1).to("cuda").device.index == torch.zeros(1).cuda().device.index == number
    on_gpu = torch.zeros(1, device="cuda")
    assert on_gpu.cuda() is on_gpu.to("cuda") is on_gpu
# Dynamo of PyTorch 2.11 refuses one function under two names (torch/_dynamo/trace_rules.py)
asked = [torch.cuda.set_device, torch.cuda.current_device, torch.cuda._exchange_device]
asked += [torch.cuda._maybe_exchange_device, torch._C._cuda_setDevice, torch._C._cuda_getDevice]
asked += [torch._C._cuda_exchangeDevice, torch._C._cuda_maybeExchangeDevice]
assert len({id(function) for function in asked}) == len(asked) == 8
torch.cuda.default_generators[0].set_state(torch.cuda.get_rng_state())
assert torch.Generator("cuda").get_state().shape == (16,)
assert torch.Generator().get_state().shape != (16,)
a, b = torch.empty(4, 4, device="cuda"), torch.empty(4, 4, device="cuda")
assert a.data_ptr() != b.data_ptr() != 0
before = torch.cuda.memory_allocated()
block = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() - before == 3 << 20
del block
assert torch.cuda.memory_allocated() == before
scores = torch.empty(4, 16, 256, 256, device="cuda", dtype=torch.bfloat16)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
weights = torch.ops.aten._safe_softmax(scores, -1)  # beside the softmax a mask of bytes
assert 12 << 20 <= torch.cuda.max_memory_allocated() - before <= 14 << 20
assert torch.cuda.memory_allocated() - before == 8 << 20
del scores, weights
rows = torch.empty(4, 1 << 20, device="cuda", requires_grad=True)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
rows.gather(1, torch.zeros(4, 1, dtype=torch.long, device="cuda")).sum().backward()
assert torch.cuda.max_memory_allocated() - before < 17 << 20  # its gradient goes into the zeros made for it
del rows
query = torch.empty(1, 4, 1024, 64, device="cuda", requires_grad=True)
key = torch.empty(1, 2, 1024, 64, device="cuda")  # grouped heads in fp32: no fused kernel
mask = torch.empty(1, 1, 1024, 1024, device="cuda")
torch.cuda.empty_cache()
block = torch.empty(4, 1024, 1024, device="cuda")
address, saved = block.data_ptr(), []
del block
with torch.autograd.graph.saved_tensors_hooks(
    lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
):
    torch.nn.functional.scaled_dot_product_attention(query, key, key, mask, enable_gqa=True)
(weights,) = {tensor.data_ptr(): tensor for tensor in saved if tensor.numel() == 4 << 20}.values()
assert weights.data_ptr() != address  # the scores, mask added in place, lay there until the softmax was done
assert torch.empty(4, 1024, 1024, device="cuda").data_ptr() == address
saved.clear()
del weights
spread = torch.empty(4, 4, device="cuda").mul(2)  # unknown: taken for one that a distribution can have
torch.distributions.MultivariateNormal(spread[0], spread).sample((2,))
linear = torch.nn.DataParallel(torch.nn.Linear(8, 8)).cuda()
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
for _ in range(3):
    linear(torch.empty(2, 8, device="cuda")).sum().backward()
    optimizer.step()


def chosen(values: torch.Tensor) -> torch.Tensor:
    """In backward this runs again in a thread of autograd's, as a checkpointed Falcon does."""
    return (values[:, [-2]] * torch.tensor(2.0, device="cuda") + values.new_tensor([1.0])).sum()


import torch.utils.checkpoint  # noqa: E402

torch.utils.checkpoint.checkpoint(chosen, a.requires_grad_() * 2, use_reentrant=False).backward()

rows = torch.empty(4, 9, 16, device="cuda")[:, :-1]
try:
    flat = rows.view(-1, 16)
except RuntimeError:  # PyTorch's, which Axolotl catches
    flat = rows.reshape(-1, 16)
assert flat.is_contiguous()


@torch.jit.script
def shifted(values: torch.Tensor) -> torch.Tensor:
    """As torchvision's transforms are scripted by the public run_clip.py."""
    return values + torch.tensor([1.0, 2.0])


assert shifted(torch.zeros(2)).tolist() == [1.0, 2.0]
print(f"{linear(torch.empty(2, 8, device='cuda')).sum():.3f}")
torch.save({"model": linear.state_dict(), "step": 3}, "checkpoint.pt")
checkpoint = torch.load("checkpoint.pt", map_location="cpu")
linear.load_state_dict(checkpoint["model"])
assert (checkpoint["step"], checkpoint["model"]["module.weight"].device.type) == (3, "cpu")
buffer = io.BytesIO()
torch.save({"bias": linear.module.bias, "step": 4}, buffer)
buffer.seek(0)
buffered = torch.load(buffer)
assert (buffered["step"], tuple(buffered["bias"].shape)) == (4, tuple(linear.module.bias.shape))
del buffered
with Path("whole.pt").open("wb") as file:
    torch.save(linear, file)
with Path("whole.pt").open("rb") as file:
    before = torch.cuda.memory_allocated()
    again = torch.load(file)
assert torch.cuda.memory_allocated() - before == 1024  # a weight and a bias in a block each
assert again.module.weight.device.type == "cuda"
# products of groups in 32 and 16 bits, as the CPU's kernel says, which FakeTensor refuses in all but bf16
ends = torch.tensor([8, 24, 32], dtype=torch.int32)
for left, right in (
    ((32, 16), (3, 16, 12)),
    ((24, 32), (32, 12)),
    ((3, 24, 16), (16, 32)),
    ((8, 12), (12, 9)),
):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        shown = []
        for place in ("cpu", "cuda"):
            factors = (torch.ones(shape, dtype=dtype, device=place) for shape in (left, right))
            try:
                product = torch._grouped_mm(*factors, offs=ends.to(place))
                shown.append((product.dtype, product.shape, product.stride()))
            except RuntimeError:
                shown.append("refused")
        assert shown[0] == shown[1], (left, right, shown)
