package moert

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const toyExperts, toyBytes = 6, 600

func content(layer, expert, part int) []byte {
	all := make([]byte, toyBytes)
	for i := range all {
		all[i] = byte(layer*97 + expert*31 + part*7 + i)
	}
	return all
}

type toyRecords struct{ broken int32 }

func (r *toyRecords) ReadPart(layer, expert, part int, dst []byte) error {
	if atomic.LoadInt32(&r.broken) != 0 {
		if expert == 0 {
			panic("a host's bug")
		}
		return errors.New("the disk is gone")
	}
	copy(dst, content(layer, expert, part))
	return nil
}

func toyLayers(routing Routing) []LayerSpec {
	layer := LayerSpec{NumExperts: toyExperts, TopK: 2, Hidden: hidden, Intermediate: 16, Routing: routing}
	next := layer
	next.ModelLayer = 1
	return []LayerSpec{layer, next}
}

func TestRecordsLieInSlots(t *testing.T) {
	file := []byte("head")
	var parts []RecordPart
	for layer := 0; layer < 2; layer++ {
		parts = append(parts, RecordPart{Layer: layer, Bytes: toyBytes, Alignment: 256},
			RecordPart{Layer: layer, Bytes: toyBytes, InFile: true, Offset: int64(len(file))})
		for expert := 0; expert < toyExperts; expert++ {
			file = append(file, content(layer, expert, 1)...)
		}
	}
	path := filepath.Join(t.TempDir(), "experts.bin")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	records := &toyRecords{}
	source, err := NewRecordSource("toy", toyLayers(External), parts, []string{path}, records)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := NewEngine(source, Options{BudgetFraction: 0.34}) // of 12 experts, 4
	source.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	for turn := 0; turn < 6; turn++ {
		step, _ := engine.Begin(Decode, 1)
		for layer := 0; layer < 2; layer++ {
			ids := []int32{int32((turn*2 + layer) % toyExperts), int32((turn + 3) % toyExperts)}
			slots, err := step.Fetch(layer, ids)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				for part := 0; part < 2; part++ {
					if !bytes.Equal(slots.Part(int(id), part), content(layer, int(id), part)) {
						t.Fatalf("layer %d expert %d part %d", layer, id, part)
					}
				}
				if slots.Part(int(id), 2) != nil {
					t.Fatal("a part that is not there")
				}
			}
			if slots.Slot(toyExperts) != -1 || slots.Slot(-1) != -1 {
				t.Fatal("an expert that is not there")
			}
			if err := slots.Release(); err != nil {
				t.Fatal(err)
			}
			if slots.Part(int(ids[0]), 0) != nil {
				t.Fatal("read after the release")
			}
		}
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
	}
	if stats, _ := engine.Stats(); stats.Evictions == 0 {
		t.Fatal("nothing was evicted")
	}
	step, _ := engine.Begin(Decode, 1)
	defer step.End()
	if _, err := step.Fetch(0, []int32{toyExperts}); err == nil || !strings.Contains(err.Error(), "expert 6 does not exist") {
		t.Fatal(err)
	}
	atomic.StoreInt32(&records.broken, 1)
	gone := false
	for expert := int32(0); expert < toyExperts; expert++ {
		slots, err := step.Fetch(1, []int32{expert})
		if err != nil {
			gone = gone || strings.Contains(err.Error(), "the disk is gone")
		} else {
			slots.Release()
		}
	}
	if !gone {
		t.Fatal("an error of the host was lost")
	}
	if _, err := NewRecordSource("none", toyLayers(External), parts, []string{path}, nil); err == nil {
		t.Fatal("parts that nobody brings")
	}
}

func TestShardsAddUp(t *testing.T) {
	source, err := NewSource("w", toyLayers(SoftmaxTopK), &testWeights{})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	run := func(shard *Shard) []float32 {
		engine, err := NewEngine(source, Options{Shard: shard})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		step, _ := engine.Begin(Decode, 1)
		y := make([]float32, hidden)
		if err := step.Forward(context.Background(), 0, input(1, 3), y); err != nil {
			t.Fatal(err)
		}
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
		return y
	}
	whole := run(nil)
	odd, even := []int32{1, 3, 5}, []int32{0, 2, 4}
	for _, shards := range [][]Shard{{{NumExperts: 2}, {FirstExpert: 2, NumExperts: 4}},
		{{Experts: [][]int32{odd, odd}}, {Experts: [][]int32{even, even}}}} {
		if err := source.CheckShards(shards); err != nil {
			t.Fatal(err)
		}
		a, b := run(&shards[0]), run(&shards[1])
		for i := range whole {
			if math.Abs(float64(a[i]+b[i]-whole[i])) > 1e-4 {
				t.Fatal(a[i], b[i], whole[i])
			}
		}
	}
	if err := source.CheckShards([]Shard{{}, {NumExperts: 1}}); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Fatal(err)
	}
}
