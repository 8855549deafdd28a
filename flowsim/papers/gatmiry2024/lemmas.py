"""Problems on which to judge gatmiry2024's lemmas on moments and layers, which need no flow."""

from flowsim.papers.gatmiry2024.problems import looped

SKEW = [[0.5, 0.1, 0.0], [0.1, 1.0, -0.2], [0.0, -0.2, 2.0]]
TURNED = {"eigenvalues": [0.01, 0.1, 0.3, 1.0], "rotation_seed": 1}
SHORTEST = looped("L = 3, d = 10, n = d + 1", 3, 11, dimension=10)
PAPER = looped("L = 3, d = 10, n = 20, as in section 5", 3, 20, dimension=10)
EDGE = looped("L = 3, d = 3, anisotropic, n = 4 k^2 d^2 at k = 2L", 3, 1296, SKEW)
TWICE_EDGE = looped("L = 2, d = 3, identity, n = 16 k^2 d^2 at k = 2L", 2, 2304, dimension=3)
ONE_LOOP = looped("L = 1, d = 4, condition 100, n = 5", 1, 5, TURNED)
ONE_DIMENSION = looped("L = 2, d = 1, n = 64", 2, 64, [[2.0]])
SHORT = looped("L = 2, d = 3, anisotropic, n = 5", 2, 5, SKEW)
SINGLE = looped("L = 1, d = 3, anisotropic, n = 4", 1, 4, SKEW)
DEEP = looped("L = 3, d = 4, condition 100, n = 6", 3, 6, TURNED)
LONG = looped("L = 2, d = 3, anisotropic, n = 1000", 2, 1000, SKEW)
ASTRONOMICAL = looped(
    "L = 3, d = 3, condition 1e4, n = 1e15", 3, 10**15, {"eigenvalues": [1e-4, 0.1, 1.0], "rotation_seed": 2}
)
LENGTHS = (SHORTEST, PAPER, ONE_LOOP, EDGE, ASTRONOMICAL)
LONG_LENGTHS = (EDGE, TWICE_EDGE, ONE_DIMENSION, ASTRONOMICAL)
