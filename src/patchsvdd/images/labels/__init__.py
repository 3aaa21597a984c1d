"""Labels of images as labelling tools exchange them: COCO, LabelMe, Label Studio, and masks in the MVTec layout."""
