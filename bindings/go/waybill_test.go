// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"encoding/json"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"

	waybill "github.com/waybill/waybill-go"
)

func TestVersion(t *testing.T) {
	if got := waybill.Version(); !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(got) {
		t.Errorf("Version() = %q, want MAJOR.MINOR.PATCH", got)
	}
	if major, minor := waybill.ABIVersion(); major != 0 || minor != 1 {
		t.Errorf("ABIVersion() = %d, %d", major, minor)
	}
}

func TestTypesHaveNamesAndSizes(t *testing.T) {
	for dtype, want := range map[waybill.DType]struct {
		name string
		size int
	}{
		waybill.BF16: {"BF16", 2}, waybill.F8E4M3: {"F8_E4M3", 1}, waybill.F64: {"F64", 8}, 99: {"", 0},
	} {
		if dtype.String() != want.name || dtype.Size() != want.size {
			t.Errorf("%d: %q, %d bytes", dtype, dtype, dtype.Size())
		}
	}
}

func TestAPlanIsMadeWithoutAnyNetwork(t *testing.T) {
	layout := must(waybill.OpenLayout(waybill.LayoutOptions{Model: "qwen3-0.6b", Layers: 2}))(t)
	var options waybill.PlanOptions
	for rank := range uint32(2) {
		how := waybill.WorkerLayout{Sharding: "tp=2", Format: "fp8-block"}
		options.Trainers = append(options.Trainers, must(layout.TrainerManifest("fsdp=2", rank))(t))
		options.Workers = append(options.Workers, must(layout.WorkerManifest(how, rank))(t))
		if !json.Valid(must(layout.WorkerParameters(how, rank))(t)) {
			t.Error("the parameters are no JSON")
		}
	}
	plan := must(waybill.BuildPlan(options))(t)
	summary := must(plan.Summarise())(t)
	var explained struct{ Bytes uint64 }
	check(t, json.Unmarshal([]byte(must(plan.Explain("routes"))(t)), &explained))
	if summary.Bytes == 0 || explained.Bytes != summary.Bytes {
		t.Errorf("%d and %d bytes", explained.Bytes, summary.Bytes)
	}
	if text := must(plan.Explain("text"))(t); !strings.Contains(text, "busiest rank / lower bound") {
		t.Error(text)
	}
	mustBe(t, layout.Load(options.Workers[0], nil), waybill.ErrFailedPrecondition, "")
	plan.Close()
	layout.Close()
}

func TestAManifestIsTheSameAsBytesAndBack(t *testing.T) {
	m := must(waybill.NewManifest())(t)
	must(m.AddRegion("memory", 1<<20))(t)
	tensor := must(m.AddTensor("w", waybill.BF16, 256, 256))(t)
	quantisation := must(waybill.QuantisationNamed("fp8-block"))(t)
	must(m.AddShard(waybill.Shard{
		Tensor: tensor, Content: waybill.ContentQuantised, Quantisation: quantisation,
		Begin: []int64{0, 0}, End: []int64{128, 256}, Strides: []int64{256, 1},
	}))(t)
	must(m.AddShard(waybill.Shard{
		Tensor: tensor, Content: waybill.ContentScales, Quantisation: quantisation, Offset: 1 << 16,
	}))(t)
	must(m.AddPadding(waybill.Padding{Offset: 1 << 17, ElementBytes: 2, Extents: []int64{8}}))(t)
	must(m.AddAlias("head", tensor))(t)
	if m.RegionCount() != 1 || m.RegionSize(0) != 1<<20 || m.RegionSize(1) != 0 {
		t.Errorf("%d regions of %d bytes", m.RegionCount(), m.RegionSize(0))
	}
	copied := must(waybill.DecodeManifest(must(m.Encode())(t)))(t)
	for _, read := range []func(*waybill.Manifest) ([]byte, error){(*waybill.Manifest).Encode, (*waybill.Manifest).Describe} {
		if !reflect.DeepEqual(must(read(m))(t), must(read(copied))(t)) {
			t.Error("the copy is another manifest")
		}
	}
	if quantisation.BlockRows != 128 || quantisation.BlockRows == math.MaxUint32 {
		t.Errorf("blocks of %d rows", quantisation.BlockRows)
	}
}

func TestProgressAndDescriptionsAreOfWhatHappened(t *testing.T) {
	j := newJob(t, jobOptions{trainers: 2})
	j.join()
	check(t, j.publish(6))
	sent, received := must(j.trainers[0].Progress())(t), must(j.workers[0].Progress())(t)
	if sent.Version != 6 || sent.Bytes != rows*columns || sent.PlannedBytes != sent.Bytes {
		t.Errorf("sent %+v", sent)
	}
	if stage := sent.Stages[waybill.StageStage]; stage.Begin <= 0 || stage.End < stage.Begin || stage.End > waybill.Now() {
		t.Errorf("staged %v", stage)
	}
	if received.Bytes != rows*columns*2 {
		t.Errorf("received %+v", received)
	}
	for want, describe := range map[string]func() ([]byte, error){
		`"role":"trainer"`:      j.trainers[1].Describe,
		`"shown_version":6`:     j.workers[0].Describe,
		`"committed_version":6`: j.controller.Status,
	} {
		if text := string(must(describe())(t)); !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	status := must(waybill.QueryController(j.ctx, j.controller.Address(), "a secret of the job"))(t)
	if string(status) != string(must(j.controller.Status())(t)) {
		t.Error("the controller says something else from afar")
	}
	tensors := string(must(waybill.JobTensors(j.ctx, j.controller.Address(), "a secret of the job"))(t))
	if !strings.Contains(tensors, `"shape":[`) || !strings.Contains(tensors, `"dtype":"BF16"`) {
		t.Errorf("the job's tensors are said to be %s", tensors)
	}
	if state := must(j.workers[0].State())(t); !state.Joined || state.ShownVersion != 6 {
		t.Errorf("%+v", state)
	}
}
