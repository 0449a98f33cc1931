// A host in Go with weights of its own: a quarter of the experts in memory, eight steps of decoding,
// then all of them. examples/c_host, hello_layer and rust do the same and print the same.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"moert.dev/go/moert"
)

const hidden = 64

// A formula instead of a file: in [-1, 1), exact in fp32.
func value(layer, expert, part, index uint32) float32 {
	h := (layer * 73856093) ^ ((expert + 1) * 19349663) ^ ((part + 1) * 83492791) ^ (index * 2654435761)
	h ^= h >> 16
	h *= 0x7feb352d
	h ^= h >> 15
	h *= 0x846ca68b
	h ^= h >> 16
	return float32(int32(h>>8)-8388608) / 8388608
}

type formula struct{}

func (formula) Read(r moert.Read, dst []float32) error {
	scale := float32(0.125)
	if r.Part == moert.Router {
		scale = 1
	}
	first := uint32(r.FirstRow * r.Cols)
	for i := range dst {
		dst[i] = scale * value(uint32(r.Layer), uint32(r.Expert), uint32(r.Part), first+uint32(i))
	}
	return nil
}

func run() error {
	var layers []moert.LayerSpec
	for l := 0; l < 2; l++ {
		layers = append(layers, moert.LayerSpec{ModelLayer: l, NumExperts: 8, TopK: 2, Hidden: hidden,
			Intermediate: 48, Renormalize: true})
	}
	source, err := moert.NewSource("tiny", layers, formula{})
	if err != nil {
		return err
	}
	engine, err := moert.NewEngine(source, moert.Options{BudgetFraction: 0.25, Clock: moert.Virtual})
	source.Close()
	if err != nil {
		return err
	}
	defer engine.Close()

	x, y := make([]float32, hidden), make([]float32, hidden)
	for token := 0; token < 8; token++ {
		for i := range x {
			x[i] = value(99, 0, 0, uint32(token*hidden+i))
		}
		step, err := engine.Begin(moert.Decode, 1)
		if err != nil {
			return err
		}
		for layer := 0; layer < engine.Layers(); layer++ {
			if err := step.Forward(context.Background(), layer, x, y); err != nil {
				step.End()
				return err
			}
			for i := range x { // the host's residual stream
				x[i] += y[i]
			}
		}
		if err := step.End(); err != nil {
			return err
		}
		fmt.Printf("token %d: %.6f %.6f %.6f\n", token, x[0], x[1], x[2])
	}

	stats, err := engine.Stats()
	if err != nil {
		return err
	}
	kept := "no"
	if stats.PeakBytes <= stats.BudgetBytes {
		kept = "yes"
	}
	fmt.Printf("lookups %d, hits %d, loads %d, evictions %d, budget kept: %s\n", stats.Lookups,
		stats.HitsResident, stats.Loads, stats.Evictions, kept)
	var refused *moert.Error
	if errors.As(engine.SetBudget(1, 0), &refused) {
		fmt.Printf("one byte: %s\n", refused.Code)
	}
	return engine.SetBudget(0, 1) // live
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
