/* SPDX-License-Identifier: Apache-2.0 */

/* The smallest program of somebody else. */
#include <stdio.h>
#include <waybill/waybill.h>

int main(void) {
  puts(waybill_version());
  return 0;
}
