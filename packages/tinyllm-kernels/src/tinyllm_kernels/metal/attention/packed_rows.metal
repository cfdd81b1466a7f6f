// Affine keys and values, with separate rows of codes, scales and biases. A number is dequantized
// each time it is read, because storing the dequantized numbers would cost more.

template <int BITS, int GROUP_SIZE, typename Words, typename Scales, typename Biases>
struct PackedRow {
  Words words;
  Scales scales;
  Biases biases;

  float operator[](int column) const {
    const int group = column / GROUP_SIZE;
    return float(scales[group]) * float(code_at<BITS>(words, column)) + float(biases[group]);
  }
};

template <int BITS, int GROUP_SIZE, typename Words, typename Scales, typename Biases>
PackedRow<BITS, GROUP_SIZE, Words, Scales, Biases> packed_row(Words words, Scales scales,
                                                              Biases biases) {
  return {words, scales, biases};
}

template <int BITS, int GROUP_SIZE, typename Words, typename Scales, typename Biases>
struct PackedRows {
  Words words;
  Scales scales;
  Biases biases;

  auto row(int key) const {
    return packed_row<BITS, GROUP_SIZE>(words.row(key), scales.row(key), biases.row(key));
  }
};

template <int BITS, int GROUP_SIZE, typename Words, typename Scales, typename Biases>
PackedRows<BITS, GROUP_SIZE, Words, Scales, Biases> packed_rows(Words words, Scales scales,
                                                                Biases biases) {
  return {words, scales, biases};
}
