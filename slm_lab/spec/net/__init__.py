"""`agent.net`: one file per kind of net, with its spec classes and their records."""

from slm_lab.spec.net.base import NetInfo
from slm_lab.spec.record import Registry

NETS: Registry[NetInfo] = Registry(__name__, __path__, chosen_by="type")
