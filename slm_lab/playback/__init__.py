"""Playback: load a trained agent and let it act.

saved_agent.py  load an agent from a run folder
enjoy.py        watch it: in a window, in a video, or by its returns
export.py       write its policy as one file: torch.export, TorchScript or ONNX
"""
