"""Optical flow: its task, its metrics, and how training pairs are seen."""

from equilibria.tasks.flow.endpoints import EPE
from equilibria.tasks.flow.task import FlowTask, OpticalFlow
from equilibria.tasks.flow.view import View

__all__ = ["EPE", "FlowTask", "OpticalFlow", "View"]
