package waybill

import "testing"

func TestVersion(t *testing.T) {
	if got, want := Version(), "0.1.0"; got != want {
		t.Errorf("Version() = %q, want %q", got, want)
	}
}
