"""Exact expectations of polynomials in Gaussian vectors and sample covariances, and of products of two units."""

from flowsim.moments.cubature import Cubature as Cubature
from flowsim.moments.cubature import cubature_size as cubature_size
from flowsim.moments.cubature import wishart_cubature as wishart_cubature
from flowsim.moments.gaussian import sample_covariance_sandwich as sample_covariance_sandwich
from flowsim.moments.gaussian import token_covariance_times_form as token_covariance_times_form
from flowsim.moments.one_pass import OnePassMoments as OnePassMoments
from flowsim.moments.one_pass import OnePassSGD as OnePassSGD
from flowsim.moments.polynomial import TracePolynomial as TracePolynomial
from flowsim.moments.polynomial import wishart_expectation as wishart_expectation
from flowsim.moments.spectrum import Quadrature as Quadrature
from flowsim.moments.spectrum import mean_central_trace_power as mean_central_trace_power
from flowsim.moments.spectrum import mean_trace_power as mean_trace_power
from flowsim.moments.spectrum import spectral_quadrature as spectral_quadrature
