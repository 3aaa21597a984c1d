"""A data set drawn on the spot, in MVTec layout, so that the product can be tried without any data.

drawing.py     noise fields and anti-aliased shapes
surface.py     Surface: colour, height and gloss of what lies under the camera; Light
camera.py      Camera: a lit surface → a photograph with its sensor noise
station.py     Station: pose, light and camera of one shot
washer.py      a turned steel flange with six bolt holes
board.py       a small green circuit board
components.py  what is soldered to it
weave.py       a plain-woven linen
parts.py       the three kinds of good part by name
defects.py     scratch, stain, hole, missing_part, wrong_colour
masks.py       a clean and a defective photograph → the defect mask
dataset.py     draw_dataset: the folder on disk
"""
