// The clock rises and falls once a sample. Outputs are read behind the falling edge: behind the rising one CXXRTL has
// not settled what depends on registers only through logic.
#include "design.h"
using design_t = cxxrtl_design::p_top;
extern "C" {
void *open_design() { auto *d = new design_t; d->p_rx.set<bool>(true); d->step(); return d; }
void close_design(void *handle) { delete static_cast<design_t *>(handle); }
void run_design(void *handle, const uint8_t *rx, uint8_t *tx, uint8_t *busy, size_t n) {
  auto *d = static_cast<design_t *>(handle);
  for (size_t i = 0; i < n; i++) {
    d->p_rx.set<bool>(rx[i]);
    d->p_clk.set<bool>(false);
    d->step();
    tx[i] = d->p_tx.get<bool>();
    busy[i] = d->p_computing.get<bool>();
    d->p_clk.set<bool>(true);
    d->step();
  }
}
}
