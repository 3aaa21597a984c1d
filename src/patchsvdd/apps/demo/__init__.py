"""A synthetic data set in MVTec layout, for trying the product without any data.

drawing.py           noise fields and anti-aliased shapes
surface.py           Surface: colour, height and gloss of the scene; Light
camera.py            Camera: a lit surface → a photograph with sensor noise
camera_setup.py      Station: pose, light and camera of one shot
washer.py            a turned steel flange with six bolt holes
board.py             a small green circuit board
board_components.py  the components on it
weave.py             a plain-woven linen
parts.py             the three kinds of good part by name
defects.py           scratch, stain, hole, missing_part, wrong_colour
masks.py             a clean and a defective photograph → the defect mask
dataset.py           draw_dataset: the folder on disk
"""
