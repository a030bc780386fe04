"""What theory says of queues: the times in systems with one server and Poisson arrivals."""

from decimal import Decimal, localcontext


def wait_quantile_md1(q: float, arrivals_per_s: float, service_s: float) -> float:
    """The q-quantile of the time in the system of M/D/1 in seconds: one server, fixed service, Poisson arrivals.

    Source: A. K. Erlang (1909): P(wait <= t) = (1 - rho) sum over k <= t/s of (-lambda (t - k s))^k / k! times
        exp(lambda (t - k s)). The terms alternate and grow, so the sum is taken with fractions of integers.
    """
    rho = arrivals_per_s * service_s
    if not 0 < rho < 1:
        raise ValueError(f"utilisation {rho:g}: the queue has no steady state")
    low, high = 0.0, service_s
    while _erlang(high, arrivals_per_s, service_s) < q:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _erlang(middle, arrivals_per_s, service_s) < q else (low, middle)
    return high + service_s


def _erlang(wait_s: float, arrivals_per_s: float, service_s: float) -> float:
    with localcontext() as context:
        context.prec = 60
        rate, service, wait = Decimal(arrivals_per_s), Decimal(service_s), Decimal(wait_s)
        total, factorial = Decimal(0), Decimal(1)
        for k in range(int(wait_s / service_s) + 1):
            factorial *= max(k, 1)
            x = rate * (wait - k * service)
            total += (-x) ** k / factorial * x.exp() if k else x.exp()
        return float((1 - rate * service) * total)


def mean_wait_md1(arrivals_per_s: float, service_s: float) -> float:
    """The mean time in the queue of M/D/1 in seconds: rho s / (2 (1 - rho))."""
    rho = arrivals_per_s * service_s
    return rho * service_s / (2 * (1 - rho))
