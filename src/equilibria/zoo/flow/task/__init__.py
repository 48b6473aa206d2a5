"""Optical flow: its task, its metrics, and how training pairs are seen."""

from equilibria.zoo.flow.task.endpoints import EPE
from equilibria.zoo.flow.task.feed import PairView
from equilibria.zoo.flow.task.task import FlowTask, OpticalFlow

__all__ = ["EPE", "FlowTask", "OpticalFlow", "PairView"]
