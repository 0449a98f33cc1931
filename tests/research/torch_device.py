"""What benchmarks ask of torch's device. A CPU serves to rehearse them: nothing is awaited there, and
its memory is not weighed."""
import platform

import torch


class Device:
    def __init__(self, name):
        self._cuda = torch.device(name).type == "cuda"
        self.name = torch.cuda.get_device_name() if self._cuda else platform.machine()

    def wait(self):
        """Until what was enqueued is done."""
        if self._cuda:
            torch.cuda.synchronize()

    def begin_peak(self):
        """Peaks are those from here on."""
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self):
        """The most that torch has reserved."""
        return torch.cuda.max_memory_reserved() if self._cuda else 0
