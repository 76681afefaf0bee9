//! Pictures as PNG files, in memory: header, one compressed block of unfiltered rows, end (PNG 1.2, sections 3 and 4).

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::io::Write;

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];

/// The file of a picture of `width` pixels a row, each red, green and blue.
///
/// # Errors
/// If there is no memory for it.
pub fn encode(width: u32, rgb: &[u8]) -> std::io::Result<Vec<u8>> {
    let row = width as usize * 3;
    let height = (rgb.len() / row) as u32;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    for pixels in rgb.chunks_exact(row) {
        // Filter 0 leaves the row as it is.
        packed.write_all(&[0])?;
        packed.write_all(pixels)?;
    }
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    // Eight bits a sample, three samples a pixel, the only compression and filter method of PNG, not interlaced.
    header.extend([8, 2, 0, 0, 0]);
    let mut file = SIGNATURE.to_vec();
    for (kind, data) in [(b"IHDR", header), (b"IDAT", packed.finish()?), (b"IEND", Vec::new())] {
        file.extend((data.len() as u32).to_be_bytes());
        let mut check = Crc::new();
        check.update(kind);
        check.update(&data);
        file.extend(kind);
        file.extend(&data);
        file.extend(check.sum().to_be_bytes());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn blocks_have_their_lengths_checks_and_rows() {
        let rgb: Vec<u8> = (0..2 * 3 * 3).collect();
        let file = encode(3, &rgb).unwrap();
        let mut rest = file.strip_prefix(&SIGNATURE).expect("the signature");
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            let (kind, data) = (rest[4..8].to_vec(), &rest[8..8 + length]);
            let mut check = Crc::new();
            check.update(&rest[4..8 + length]);
            assert_eq!(rest[8 + length..12 + length], check.sum().to_be_bytes());
            if kind == b"IDAT" {
                let mut rows = Vec::new();
                flate2::read::ZlibDecoder::new(data).read_to_end(&mut rows).unwrap();
                assert_eq!(rows, [&[0], &rgb[..9], &[0], &rgb[9..]].concat());
            }
            kinds.push(String::from_utf8(kind).unwrap());
            rest = &rest[12 + length..];
        }
        assert_eq!(kinds, ["IHDR", "IDAT", "IEND"]);
    }
}
