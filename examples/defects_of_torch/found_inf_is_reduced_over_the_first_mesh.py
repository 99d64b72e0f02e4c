"""Experts on a sub-mesh, the rest on the whole mesh, one optimizer: ranks take different steps, silently.

Four ranks (gloo), an inf in the expert of rank 0. GradScaler reduces found_inf over the mesh of the first gradient only,
so it depends on the order of parameters which ranks skip the step and halve the scale.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def parameter(mesh, gradient):
    made = torch.nn.Parameter(DTensor.from_local(torch.ones(1, 2), mesh, [Shard(0)]))
    made.grad = DTensor.from_local(torch.full((1, 2), gradient), mesh, [Shard(0)])
    return made


def train(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "experts"))
    expert = parameter(grid["experts"], float("inf") if rank == 0 else 1.0)
    dense = parameter(init_device_mesh("cpu", (4,)), 1.0)
    optimizer = torch.optim.SGD([expert, dense], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    scaler.update()
    scales = [None] * 4
    dist.all_gather_object(scales, scaler.get_scale())
    if rank == 0:
        print(f"loss scales of four ranks after one step: {scales}; should be [512.0, 512.0, 512.0, 512.0]")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (folder,), nprocs=4)
