"""zhang2023: Trained Transformers Learn Linear Models In-Context (Zhang, Frei, Bartlett)."""

from flowsim.analysis.zhang2023.claims import CLAIMS as CLAIMS
