/* metrics.h: GET /metrics, Prometheus text with vLLM's names. */
#ifndef K3I_METRICS_H
#define K3I_METRICS_H

#include "api.h"

k3_status k3i_metrics_write(k3i_api *api, k3i_buf *ret, k3i_err *err);

#endif
