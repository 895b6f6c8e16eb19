"""What each node of a circuit does: measurements, roles with evidence, sentences, checks."""

from unweave.roles.explain import Explanation, explain, explain_with_cost
from unweave.roles.measure import measure
from unweave.roles.measurements import Measurements

__all__ = ["Explanation", "Measurements", "explain", "explain_with_cost", "measure"]
