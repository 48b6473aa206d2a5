"""Optical flow: its task, its metrics, and how training pairs are seen."""

from equilibria.zoo.flow.task.endpoints import EPE
from equilibria.zoo.flow.task.task import FlowTask, OpticalFlow
from equilibria.zoo.flow.task.view import View

__all__ = ["EPE", "FlowTask", "OpticalFlow", "View"]
