"""The chaos run (chaos.py) in its tiers; by hand with other seeds: chaos.py --events 200 --seed 7."""
import sys

from chaos import chaos
from runner import real_model
from service import case, run


@case("full", seconds=240, gaps=True)
def soak_chaos_of_40_faults_is_forty_pauses():
    chaos(40, seed=1)


@case("nightly", seconds=1200, gaps=True)
def soak_chaos_of_200_faults_is_two_hundred_pauses():
    chaos(200, seed=2)


@case("nightly", seconds=600, real=True)
def soak_chaos_of_20_faults_on_the_real_model():
    chaos(20, seed=3, model=real_model())


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
