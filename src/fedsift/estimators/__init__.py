"""Models that are not networks: anything with `fit` and `predict_proba`, and black boxes.

names       from a text or an object to what makes an estimator
adapters    how one is trained on soft targets, and how its answers become columns of classes
state       a trained estimator as bytes, and back, without pickle
boosters    what XGBoost and LightGBM write, checked before they read it
remote      a black box that is asked over HTTP
"""
