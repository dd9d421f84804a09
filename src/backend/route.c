/* What can be routed by. */
#include "backend/backend.h"

int pm_route_check(const pm_route *route, pm_error *err)
{
    int experts = route->experts, top_k = route->top_k, groups = route->groups, best = route->group_best;
    if (experts < 1 || top_k < 1 || top_k > experts)
        return pm_fail(err, PM_ERR_FORMAT, "%d experts per token of %d cannot be chosen", top_k, experts);
    if (groups <= 1)
        return PM_OK;
    if (experts % groups)
        return pm_fail(err, PM_ERR_FORMAT, "%d experts do not divide into %d groups", experts, groups);
    if (best < 1 || best > 2 || experts / groups < 2)
        return pm_fail(err, PM_ERR_FORMAT, "%d experts in %d groups: a group needs at least 2, and its score 1 or 2",
                       experts, groups);
    if (route->top_groups < 1 || route->top_groups > groups)
        return pm_fail(err, PM_ERR_FORMAT, "%d groups of %d cannot be kept", route->top_groups, groups);
    if (top_k > experts / groups * route->top_groups)
        return pm_fail(err, PM_ERR_FORMAT, "%d experts per token are more than the %d in the %d groups kept", top_k,
                       experts / groups * route->top_groups, route->top_groups);
    return PM_OK;
}
