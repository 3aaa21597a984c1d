"""Run exported detectors with numpy, Pillow and ONNX Runtime or OpenVINO; PyTorch is not needed.

```python
from patchsvdd.runtime import Detector

detector = Detector("part.onnx")
inspection = detector.inspect("new.png")
print(inspection.verdict, inspection.score)
```
"""

from patchsvdd.runtime.detector import Detector as Detector

__all__ = ["Detector"]
