"""How fast a training is, where a step's time goes, and what that means for more ranks.

worker.py runs in each rank and clocks the real loop; launches.py starts ranks and independent copies; figures.py makes
medians and efficiencies of what they tell; projection.py is the model of the all-reduce; report.py tables and the plot.
"""
