"""Full-network influence: IF_i = ∇ℓ_iᵀ (H + δI)⁻¹ ∇ℓ_i over every trainable parameter of a network.

H is the Hessian, at the parameters θ as they are, of the *mean* objective

    F(θ) = 1/n Σ_j ℓ(f_θ(x_j), y_j) + λ/2 ‖θ‖²

and δ the damping that keeps H + δI positive definite where the loss is not convex. Normalisation: with the *sum* of
the losses the Hessian is nH, and the damping nδ belongs to it; every score is then divided by n, which is the scale of
``noshadow.score`` (its ridge is Λ = n(λ + δ)). The scale is all that changes: ranks are the same.

H is never formed. H v is the derivative of ∇F along v, by autograd through the graph of the gradient; each system is
solved by conjugate gradients until ‖∇ℓ_i − (H + δI)x‖ ≤ tolerance ‖∇ℓ_i‖. Only the number ∇ℓ_iᵀx is wanted, and
conjugate gradients give it as they go, Σₖ αₖ rₖᵀzₖ: x is never kept, and the number's relative error is of the
order of tolerance².

All systems share one matrix, and with a heavy damping all but a few of its directions look like (λ + δ)I. A basis V
of those few, grown by block Lanczos from Hessian products, makes the preconditioner

    M⁻¹ = (I − VVᵀ)/(λ + δ) + V(VᵀHV + (λ + δ)I)⁻¹Vᵀ

with which x = M⁻¹∇ℓ_i is usually within the tolerance already, and the record needs no product of its own. How far
off x is can be told without one: for Gaussian probes ω with Hω known, ωᵀr = ωᵀ∇ℓ_i − (Hω + (λ + δ)ω)ᵀx, and the
mean square over the probes estimates ‖r‖². A record that is not clearly within the tolerance goes on to conjugate
gradients. For these shortcuts the relative error of a score is of the order of the tolerance, not of its square.
"""

from noshadow.network.influence import NetworkInfluence, network_influence

__all__ = ["NetworkInfluence", "network_influence"]
