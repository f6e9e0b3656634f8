// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"testing"

	waybill "github.com/waybill/waybill-go"
	"github.com/waybill/waybill-go/internal/inc"
)

// What calls cost over C: go test -run '^$' -bench . -count 5

func BenchmarkState(b *testing.B) {
	j := newJob(b, jobOptions{})
	j.join()
	b.Run("C", func(b *testing.B) {
		if failures := inc.States(j.workers[0].Handle(), b.N); failures != 0 {
			b.Error(failures, "calls failed")
		}
	})
	b.Run("Go", func(b *testing.B) {
		for range b.N {
			must(j.workers[0].State())(b)
		}
	})
}

func BenchmarkRefusal(b *testing.B) {
	j := newJob(b, jobOptions{})
	j.join()
	b.Run("C", func(b *testing.B) {
		if failures := inc.Refusals(j.workers[0].Handle(), b.N); failures != b.N {
			b.Error(b.N-failures, "calls did not fail")
		}
	})
	b.Run("Go", func(b *testing.B) {
		for range b.N {
			if j.workers[0].Join(j.ctx) == nil {
				b.Error("joined twice")
			}
		}
	})
}

// From the library's queue to the goroutine that waits.
func BenchmarkEvent(b *testing.B) {
	shared := must(waybill.DefaultContext())(b)
	for range b.N {
		shared.Pass()
	}
}
