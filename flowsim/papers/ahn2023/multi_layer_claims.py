"""The claims of ahn2023, section 5 and appendices B and C, each with problems chosen so that it may break."""

from flowsim.claims.claim import Claim, Relation
from flowsim.claims.hypotheses import finite_context
from flowsim.papers.ahn2023 import multi_layer, multi_layer_prompts, spaces
from flowsim.papers.ahn2023.multi_layer_problems import DEEP, FREE, FREE_DEEP, ISOTROPIC, LARGE, ONE_LAYER, PAPER, SHORT

_ON_PROMPTS = (PAPER, SHORT)
_STATIC = (PAPER, SHORT, LARGE, FREE)


def _claim(part: str, source: str, statement: str, compare, **options) -> Claim:
    options.setdefault("problems", _STATIC)
    options.setdefault("spaces", spaces.LAYERS)
    options.setdefault("along_flow", False)
    options.setdefault("setting", multi_layer.layers_with_inverse_weights)
    return Claim(f"ahn2023.{part}", f"ahn2023, {source}", statement, compare, **options)


def _on_prompts(part: str, source: str, statement: str, compare, **options) -> Claim:
    defaults = {"problems": _ON_PROMPTS, "hypotheses": finite_context, "relation": Relation.IDENTITY}
    return _claim(part, source, statement, compare, **(defaults | options))


_PROMPTS_NOTE = "Judged on 64 drawn prompts with drawn weights."

_SECTION_5 = (
    _on_prompts(
        "lemma-2",
        "Lemma 2, (64)",
        "After layer i the model predicts <x^{(n+1)}, w_i>, with w_0 = 0 and w_{i+1} = w_i + A_i grad R_{w*}(w_i)",
        multi_layer_prompts.lemma_2,
        note="Judged on 64 drawn prompts with drawn weights, after every layer. A_0, .., A_k are k + 1 layers, which "
        'the paper calls k; "(64) is equivalent to" should name (63), and w^gd := -theta_k is meant for every layer.',
    ),
    _on_prompts(
        "eq-11",
        "(11)",
        "Lemma 2 with w_{k+1} = w_k + A_k grad R_{w_k}(w_k)",
        multi_layer_prompts.eq_11,
        note="R_{w_k} is least at w_k itself, so that the iteration as printed never moves; R_{w*} is meant, as in "
        "Lemma 2. Whether the paper or its extracted text has it cannot be told.",
    ),
    _on_prompts(
        "sec-5.2.hessian",
        "section 5.2",
        "The Hessian of (10) is X X^T/(2n)",
        multi_layer_prompts.hessian_printed,
    ),
    _on_prompts(
        "sec-5.2.hessian",
        "section 5.2",
        "The Hessian of (10) is X X^T/n",
        multi_layer_prompts.hessian_corrected,
        form="corrected",
        note="The 1/2 of (10) is used up by the square. Likewise E[X X^T] is n Sigma, not Sigma.",
    ),
    _on_prompts(
        "eq-61",
        "(61)",
        "y_i at layer l+1 is y_i + (1/n) sum_j x_{n+1}^T A_l x_j y_j, for i <= n",
        multi_layer_prompts.eq_61_printed,
    ),
    _on_prompts(
        "eq-61",
        "(61)",
        "y_i at layer l+1 is y_i + (1/n) sum_j x_i^T A_l x_j y_j, for i <= n",
        multi_layer_prompts.eq_61_corrected,
        form="corrected",
        note="With x_i in the place of x_{n+1}, which is (57). In the line before it y := <y_i, w*> should be "
        "<x_i, w*>.",
    ),
    _on_prompts(
        "eq-22",
        "(22)",
        "Y_{i+1} = Y_0 prod_l (I + M X_0^T A_l X_0), the query's label being given",
        multi_layer_prompts.eq_22,
        note=_PROMPTS_NOTE + " The 1/n is in the A_l, as the proof has it.",
    ),
    _on_prompts(
        "eq-28",
        "proof of Theorem 4, G before (28)",
        "Y_{k+1} = w*^T G with G = X_0 prod_l (I - M X_0^T A_l X_0)",
        multi_layer_prompts.eq_28_printed,
        note="The sign is not that of (22), (29) and (30); w*^T w* in the display before should be w* w*^T.",
    ),
    _on_prompts(
        "eq-28",
        "proof of Theorem 4, G before (28)",
        "Y_{k+1} = w*^T G with G = X_0 prod_l (I + M X_0^T A_l X_0)",
        multi_layer_prompts.eq_28_corrected,
        form="corrected",
        note="With the sign of (22); nothing else in the proof changes.",
    ),
    _on_prompts(
        "lemma-9",
        "Lemma 9, (55)",
        "[Z_k] + w*^T x^{(n+1)} = [Zbar_k] at the query's label, where Zbar_0 has the label in it; with B",
        multi_layer_prompts.lemma_9,
        note=_PROMPTS_NOTE + " It holds prompt by prompt, hence for every law.",
    ),
)
_THEOREM_3 = (
    _claim(
        "theorem-3",
        "Theorem 3",
        "For two layers and Sigma = I some diagonal A_0, A_1 minimise f over symmetric matrices",
        multi_layer.theorem_3,
        relation=Relation.IDENTITY,
        hypotheses=multi_layer.two_isotropic_layers,
        constants=multi_layer.landscape_constants,
        problems=ISOTROPIC,
        spaces=spaces.ISOTROPIC_LAYERS,
        note="The least of the loss from 16 starts each over symmetric and over diagonal pairs. The indices of the "
        "products in the proof run from 1 to 2 and from 0 to 1 in turn.",
    ),
    _claim(
        "theorem-3.multiples",
        "Theorem 3",
        "For k = 2 and Sigma = I two different multiples of I, in either order, minimise f over symmetric matrices",
        multi_layer.theorem_3_multiples,
        form="corrected",
        relation=Relation.IDENTITY,
        hypotheses=multi_layer.two_isotropic_layers,
        constants=multi_layer.landscape_constants,
        problems=ISOTROPIC,
        spaces=spaces.ISOTROPIC_LAYERS,
        note="Sharper than the theorem, by minimisation from 16 starts and not by proof: the step sizes differ from "
        "layer to layer, not from coordinate to coordinate.",
    ),
    _claim(
        "theorem-3.proof",
        "proof of Theorem 3",
        "f(D_0, diag(A_1)) <= f(D_0, A_1) for diagonal D_0, and the same with the layers exchanged",
        multi_layer.theorem_3_proof,
        hypotheses=multi_layer.two_isotropic_layers,
        problems=ISOTROPIC,
        spaces=spaces.ISOTROPIC_LAYERS,
        note="At drawn matrices.",
    ),
    _claim(
        "theorem-3.convex",
        "proof of Theorem 3",
        "f is convex in A_1, and in A_0, the other one fixed",
        multi_layer.theorem_3_convex,
        hypotheses=multi_layer.two_isotropic_layers,
        problems=ISOTROPIC,
        spaces=spaces.ISOTROPIC_LAYERS,
        note="Along drawn directions at drawn matrices.",
    ),
)
_THEOREM_4 = (
    _claim(
        "theorem-4",
        "Theorem 4, (24)",
        "inf over S of sum_i |grad_{A_i} f|_F^2 is 0",
        multi_layer.theorem_4,
        relation=Relation.IDENTITY,
        constants=multi_layer.landscape_constants,
        problems=(*_STATIC, ONE_LAYER, DEEP, FREE_DEEP),
        note="Exhibited: the gradient over all matrices at the best a_i, which are the reciprocals of the zeros of the "
        "orthogonal polynomial of degree k of x times the mean spectrum. The infimum of footnote 1 is attained.",
    ),
    _claim(
        "theorem-4.minimum",
        "section 5.2",
        'A_i ~ Sigma^-1 is "locally optimal": the Hessian over all matrices is positive definite at the best of S',
        multi_layer.theorem_4_minimum,
        form="corrected",
        constants=multi_layer.landscape_constants,
        problems=(*_STATIC, ONE_LAYER, DEEP, FREE_DEEP),
        note="What the text says appears to be so, which Theorem 4 does not assert: an isolated local minimum.",
    ),
    _claim(
        "theorem-4.global",
        "section 5.3",
        'The best point of S is a global minimum, as it "appears": many starts over all matrices end at its loss',
        multi_layer.every_start,
        form="corrected",
        relation=Relation.IDENTITY,
        problems=(SHORT, LARGE, FREE, PAPER),
        note="16 Gaussian starts, every one of which reaches it. This is evidence and not a proof.",
    ),
    _claim(
        "theorem-4.on-the-set",
        "section 7, after Lemma 8",
        "On S every start ends at the least loss: the local minima are the k! orders of one choice of different a_i",
        multi_layer.every_start_on_the_set,
        form="corrected",
        relation=Relation.IDENTITY,
        problems=(*_STATIC, DEEP),
        note="A critical point with different a_i makes prod (1 - a_i x) orthogonal to all x p of degree k, which one "
        "choice does; one with two equal a_i is a strict saddle, as moving them apart lowers the loss by "
        "s^2 E tr W^2 prod. Judged from 16 starts.",
    ),
    _claim(
        "theorem-4.gradient",
        "proof of Theorem 4",
        "At points of S every grad_{A_i} f is a multiple of Sigma",
        multi_layer.gradient_on_the_set,
        form="corrected",
        relation=Relation.IDENTITY,
        note="What the proof shows, said in one line: by it the gradient over S and over all matrices vanish together.",
    ),
    _claim(
        "theorem-4.invariant",
        "proof of Theorem 4",
        "Plain gradient flow leaves S: at points of S no grad_{A_i} f is a multiple of Sigma^-1, unless Sigma ~ I",
        multi_layer.leaves_the_set,
        form="corrected",
        hypotheses=multi_layer.anisotropic,
        problems=(ISOTROPIC[0], *_STATIC),
        note="Not said by the paper, which takes an S-constrained flow for its proof.",
    ),
    _claim(
        "eq-25",
        "(25) with R~_i = r_i I",
        "For A in S and every R, d/dt f(A + t R~) <= d/dt f(A + t R) with R~_i = r_i I, r_i = "
        "tr(Sigma^{1/2} R_i Sigma^{1/2})/d",
        multi_layer.eq_25,
    ),
    _claim(
        "eq-25",
        "(25) with R~_i = r_i Sigma^-1",
        "For A in S and every R, d/dt f(A + t R~) = d/dt f(A + t R) with R~_i = r_i Sigma^-1, r_i = "
        "tr(Sigma^{1/2} R_i Sigma^{1/2})/d",
        multi_layer.eq_25_corrected,
        form="corrected",
        relation=Relation.IDENTITY,
        note="As before (27): r_i I is not in S, and with it (25) fails for R or for -R unless tr Sigma = d. The "
        "equality is what (26) needs; the inequality alone is met by a large enough multiple of any descent direction.",
    ),
    _claim(
        "eq-26",
        "(26)",
        "With dA_i/dt = -r_i Sigma^-1, r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2}): d/dt f <= -sum |grad_{A_i} f|_F^2",
        multi_layer.eq_26,
        note="True with a factor d to spare for d > 1: this flow is d times faster than the one that (25) gives.",
    ),
    _claim(
        "eq-26",
        "(26)",
        "With dA_i/dt = -r_i Sigma^-1, r_i = tr(Sigma^{1/2} grad_i Sigma^{1/2})/d: d/dt f = -sum |grad_{A_i} f|_F^2",
        multi_layer.eq_26_corrected,
        form="corrected",
        relation=Relation.IDENTITY,
        note="With the 1/d of the r_i of (25).",
    ),
    _claim(
        "lemma-8",
        "Lemma 8",
        "On S the loss does not depend on the order of the layers",
        multi_layer.lemma_8,
        relation=Relation.IDENTITY,
        problems=(*_STATIC, DEEP),
    ),
    _claim(
        "lemma-8.general",
        "Lemma 8 beyond S",
        "At drawn matrices off S the loss does depend on the order of the layers",
        multi_layer.lemma_8_general,
        form="corrected",
        hypotheses=multi_layer.several_layers,
        note="What the lemma needs S for.",
    ),
)

CLAIMS: tuple[Claim, ...] = (*_SECTION_5, *_THEOREM_3, *_THEOREM_4)
