"""Pages for a review, of one statement or of a whole paper."""

from flowsim.report.referee.paper import PaperReview as PaperReview
from flowsim.report.referee.paper import review_of_paper as review_of_paper
from flowsim.report.referee.recorded import Recorded as Recorded
from flowsim.report.referee.recorded import recorded as recorded
from flowsim.report.referee.statement import Review as Review
from flowsim.report.referee.statement import review as review
