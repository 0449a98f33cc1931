#!/usr/bin/env python3
"""Writes a tiny GGUF model with random weights: make_gguf.py LAYOUT FILE [key=value ...]

LAYOUT is qwen3moe, mixtral, deepseek2 or gpt-oss, or lora: an adapter of qwen3moe's experts. Keys
and their defaults: layers=3 experts=16 top_k=4 hidden=256 ff=256 seed=1 split=1 header=0 sparse=0
scale=0. With scale=1 every expert has a factor, as those of NVFP4 files and of Gemma 4 have.
With split=N there are N files, which llama.cpp reads as one: FILE-00001-of-0000N.gguf, where FILE is
without its .gguf. With header=1 the first of them has no tensors. With sparse=1 experts are zeros
that take no space on the disk. Matrices are F16 (quantize them with llama.cpp), the rest F32. The
same arguments give the same bytes.
"""
import random
import struct
import sys

F32, F16 = 0, 1  # ggml's numbers
U16, U32, FLOAT, BOOL, STRING, ARRAY, I32 = 2, 4, 6, 7, 8, 9, 5  # types of GGUF values
VOCABULARY = 288
HEADS, HEAD = 4, 64


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def value(kind, content):
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack('<IQ', inner, len(items)) + b''.join(value(inner, i) for i in items)
    return struct.pack({U16: '<H', U32: '<I', I32: '<i', FLOAT: '<f', BOOL: '<?'}[kind], content)


class Hole:
    """Zeros that are not written."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


class Model:
    def __init__(self, architecture, options):
        self.architecture = architecture
        self.values = [('general.architecture', STRING, architecture)]
        self.tensors = []
        self.random = random.Random(options['seed'])
        self.options = options

    def set(self, key, kind, content):
        self.values.append((f'{self.architecture}.{key}', kind, content))

    def matrix(self, name, *shape):
        """shape as ggml has it: columns first. Values of either sign in [1/64, 1/16)."""
        count = 1
        for n in shape:
            count *= n
        if self.options['sparse'] and '_exps.' in name:
            self.tensors.append((name, shape, F16, Hole(2 * count)))
            return
        bits = int.from_bytes(self.random.randbytes(2 * count), 'little')
        keep = int.from_bytes(struct.pack('<H', 0x87ff) * count, 'little')
        base = int.from_bytes(struct.pack('<H', 0x2000) * count, 'little')
        self.tensors.append((name, shape, F16, ((bits & keep) | base).to_bytes(2 * count, 'little')))

    def vector(self, name, *shape, around=1.0):
        count = 1
        for n in shape:
            count *= n
        items = [around + self.random.uniform(-0.1, 0.1) for _ in range(count)]
        self.tensors.append((name, shape, F32, struct.pack(f'<{count}f', *items)))

    def write(self, path):
        count = self.options['split']
        if count == 1:
            write_file(path, self.values, self.tensors)
            return
        for i in range(count):
            values = self.values if i == 0 else []
            values = values + [('split.no', U16, i), ('split.count', U16, count),
                               ('split.tensors.count', I32, len(self.tensors))]
            header = self.options['header']
            begin, end = (max(0, k - header) * len(self.tensors) // (count - header)
                          for k in (i, i + 1))
            name = f'{path.removesuffix(".gguf")}-{i + 1:05d}-of-{count:05d}.gguf'
            write_file(name, values, self.tensors[begin:end])


def write_file(path, values, tensors):
    alignment = 32
    out = [b'GGUF', struct.pack('<IQQ', 3, len(tensors), len(values))]
    for key, kind, content in values:
        out.append(string(key) + struct.pack('<I', kind) + value(kind, content))
    offset = 0
    for name, shape, kind, data in tensors:
        out.append(string(name) + struct.pack('<I', len(shape)))
        out.append(struct.pack(f'<{len(shape)}Q', *shape) + struct.pack('<IQ', kind, offset))
        offset += -(-len(data) // alignment) * alignment
    head = b''.join(out)
    with open(path, 'wb') as file:
        file.write(head + bytes(-len(head) % alignment))
        for _, _, _, data in tensors:
            if isinstance(data, Hole):
                file.seek(len(data) + -len(data) % alignment, 1)
            else:
                file.write(data + bytes(-len(data) % alignment))
        file.truncate()


def common(model):
    o = model.options
    model.set('block_count', U32, o['layers'])
    model.set('context_length', U32, 4096)
    model.set('embedding_length', U32, o['hidden'])
    model.set('feed_forward_length', U32, o['ff'])
    model.set('attention.head_count', U32, HEADS)
    model.set('attention.layer_norm_rms_epsilon', FLOAT, 1e-6)
    model.set('rope.freq_base', FLOAT, 10000.0)
    model.set('expert_count', U32, o['experts'])
    model.set('expert_used_count', U32, o['top_k'])
    model.set('vocab_size', U32, VOCABULARY)
    tokens = ['<unk>', '<s>', '</s>'] + [f'<0x{i:02X}>' for i in range(256)]
    kinds = [2, 3, 3] + [6] * 256  # unknown, control, byte
    tokens += [f'word{i}' for i in range(len(tokens), VOCABULARY)]
    kinds += [1] * (VOCABULARY - len(kinds))
    model.values += [
        ('tokenizer.ggml.model', STRING, 'llama'),
        ('tokenizer.ggml.tokens', ARRAY, (STRING, tokens)),
        ('tokenizer.ggml.scores', ARRAY, (FLOAT, [0.0] * VOCABULARY)),
        ('tokenizer.ggml.token_type', ARRAY, (I32, kinds)),
        ('tokenizer.ggml.bos_token_id', U32, 1),
        ('tokenizer.ggml.eos_token_id', U32, 2),
    ]
    model.matrix('token_embd.weight', o['hidden'], VOCABULARY)
    model.vector('output_norm.weight', o['hidden'])
    model.matrix('output.weight', o['hidden'], VOCABULARY)


def grouped_attention(model, block, kv_heads, bias=False):
    hidden = model.options['hidden']
    for name, rows in (('q', HEADS * HEAD), ('k', kv_heads * HEAD), ('v', kv_heads * HEAD)):
        model.matrix(f'{block}.attn_{name}.weight', hidden, rows)
        if bias:
            model.vector(f'{block}.attn_{name}.bias', rows, around=0.0)
    model.matrix(f'{block}.attn_output.weight', HEADS * HEAD, hidden)
    if bias:
        model.vector(f'{block}.attn_output.bias', hidden, around=0.0)


def experts(model, block, bias=False):
    o = model.options
    model.matrix(f'{block}.ffn_gate_inp.weight', o['hidden'], o['experts'])
    if bias:
        model.vector(f'{block}.ffn_gate_inp.bias', o['experts'], around=0.0)
    for name, cols, rows in (('gate', o['hidden'], o['ff']), ('down', o['ff'], o['hidden']),
                             ('up', o['hidden'], o['ff'])):
        model.matrix(f'{block}.ffn_{name}_exps.weight', cols, rows, o['experts'])
        if bias:
            model.vector(f'{block}.ffn_{name}_exps.bias', rows, o['experts'], around=0.0)
        if o['scale']:
            model.vector(f'{block}.ffn_{name}_exps.scale', o['experts'])


def qwen3moe(options):
    model = Model('qwen3moe', options)
    common(model)
    model.set('attention.head_count_kv', U32, 2)
    model.set('attention.key_length', U32, HEAD)
    model.set('attention.value_length', U32, HEAD)
    model.set('expert_feed_forward_length', U32, options['ff'])
    for i in range(options['layers']):
        block = f'blk.{i}'
        model.vector(f'{block}.attn_norm.weight', options['hidden'])
        grouped_attention(model, block, 2)
        model.vector(f'{block}.attn_q_norm.weight', HEAD)
        model.vector(f'{block}.attn_k_norm.weight', HEAD)
        model.vector(f'{block}.ffn_norm.weight', options['hidden'])
        experts(model, block)
    return model


def mixtral(options):
    model = Model('llama', options)
    common(model)
    model.set('attention.head_count_kv', U32, 2)
    model.set('attention.key_length', U32, HEAD)
    model.set('attention.value_length', U32, HEAD)
    model.set('rope.dimension_count', U32, HEAD)
    for i in range(options['layers']):
        block = f'blk.{i}'
        model.vector(f'{block}.attn_norm.weight', options['hidden'])
        grouped_attention(model, block, 2)
        model.vector(f'{block}.ffn_norm.weight', options['hidden'])
        experts(model, block)
    return model


def deepseek2(options):
    model = Model('deepseek2', options)
    common(model)
    hidden, ff = options['hidden'], options['ff']
    rank, rope = 64, 32
    model.set('attention.head_count_kv', U32, 1)
    model.set('attention.q_lora_rank', U32, 128)
    model.set('attention.kv_lora_rank', U32, rank)
    model.set('attention.key_length', U32, rank + rope)
    model.set('attention.value_length', U32, rank)
    model.set('attention.key_length_mla', U32, HEAD)
    model.set('attention.value_length_mla', U32, HEAD)
    model.set('rope.dimension_count', U32, rope)
    model.set('leading_dense_block_count', U32, 1)
    model.set('expert_feed_forward_length', U32, ff)
    model.set('expert_shared_count', U32, 1)
    model.set('expert_weights_scale', FLOAT, 2.5)
    model.set('expert_weights_norm', BOOL, True)
    model.set('expert_gating_func', U32, 2)  # sigmoid
    for i in range(options['layers']):
        block = f'blk.{i}'
        model.vector(f'{block}.attn_norm.weight', hidden)
        model.vector(f'{block}.attn_q_a_norm.weight', 128)
        model.vector(f'{block}.attn_kv_a_norm.weight', rank)
        model.matrix(f'{block}.attn_q_a.weight', hidden, 128)
        model.matrix(f'{block}.attn_q_b.weight', 128, HEADS * HEAD)
        model.matrix(f'{block}.attn_kv_a_mqa.weight', hidden, rank + rope)
        model.matrix(f'{block}.attn_k_b.weight', HEAD - rope, rank, HEADS)
        model.matrix(f'{block}.attn_v_b.weight', rank, HEAD, HEADS)
        model.matrix(f'{block}.attn_output.weight', HEADS * HEAD, hidden)
        model.vector(f'{block}.ffn_norm.weight', hidden)
        shared = '' if i == 0 else '_shexp'
        for name, cols, rows in (('gate', hidden, ff), ('down', ff, hidden), ('up', hidden, ff)):
            model.matrix(f'{block}.ffn_{name}{shared}.weight', cols, rows)
        if i > 0:
            model.vector(f'{block}.exp_probs_b.bias', options['experts'], around=0.0)
            experts(model, block)
    return model


def gpt_oss(options):
    model = Model('gpt-oss', options)
    common(model)
    hidden = options['hidden']
    model.set('attention.head_count_kv', U32, 2)
    model.set('attention.key_length', U32, HEAD)
    model.set('attention.value_length', U32, HEAD)
    model.set('attention.sliding_window', U32, 128)
    model.set('expert_feed_forward_length', U32, options['ff'])
    for i in range(options['layers']):
        block = f'blk.{i}'
        model.vector(f'{block}.attn_norm.weight', hidden)
        model.vector(f'{block}.post_attention_norm.weight', hidden)
        grouped_attention(model, block, 2, bias=True)
        model.vector(f'{block}.attn_sinks.weight', HEADS, around=0.0)
        experts(model, block, bias=True)
    return model


def lora(options):
    model = Model('qwen3moe', options)
    model.values += [('general.type', STRING, 'adapter'), ('adapter.type', STRING, 'lora'),
                     ('adapter.lora.alpha', FLOAT, 4.0)]
    rank = 4
    for i in range(options['layers']):
        for name, cols, rows in (('gate', options['hidden'], options['ff']),
                                 ('down', options['ff'], options['hidden']),
                                 ('up', options['hidden'], options['ff'])):
            tensor = f'blk.{i}.ffn_{name}_exps.weight'
            model.matrix(f'{tensor}.lora_a', cols, rank, options['experts'])
            model.matrix(f'{tensor}.lora_b', rank, rows, options['experts'])
    return model


def main(arguments):
    layouts = {'qwen3moe': qwen3moe, 'mixtral': mixtral, 'deepseek2': deepseek2, 'gpt-oss': gpt_oss,
               'lora': lora}
    options = dict(layers=3, experts=16, top_k=4, hidden=256, ff=256, seed=1, split=1, header=0,
                   sparse=0, scale=0)
    if len(arguments) < 2 or arguments[0] not in layouts:
        sys.exit(__doc__)
    for argument in arguments[2:]:
        key, _, number = argument.partition('=')
        if key not in options:
            sys.exit(f'{argument}: keys are {", ".join(options)}')
        options[key] = int(number)
    layouts[arguments[0]](options).write(arguments[1])


if __name__ == '__main__':
    main(sys.argv[1:])
