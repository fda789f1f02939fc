//! `#[derive(DeviceCopy)]` and `#[derive(PointerFree)]`.
//!
//! Safety of what is written: each field's type is required to implement the trait, by a bound where it depends on a type
//! parameter and by use where it does not. A value then owns nothing, zero is valid for each part, and
//! `is_valid` asks each part.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Fields, Ident, Member, Path, Result, Type, parse_quote, parse_quote_spanned,
};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trait {
    DeviceCopy,
    PointerFree,
}

impl Trait {
    fn name(self) -> &'static str {
        match self {
            Self::DeviceCopy => "DeviceCopy",
            Self::PointerFree => "PointerFree",
        }
    }
}

/// The implementation, or a compile error.
pub(crate) fn derive(input: TokenStream, which: Trait) -> TokenStream {
    syn::parse2(input)
        .and_then(|input| implementation(&input, which))
        .unwrap_or_else(Error::into_compile_error)
}

fn implementation(input: &DeriveInput, which: Trait) -> Result<TokenStream> {
    let root = root(input)?;
    let (fields, union): (Vec<(Member, &Type)>, bool) = match &input.data {
        Data::Struct(data) => (named(&data.fields), false),
        Data::Union(data) => {
            let fields = data.fields.named.iter();
            (fields.filter_map(|f| Some((Member::Named(f.ident.clone()?), &f.ty))).collect(), true)
        }
        Data::Enum(data) => {
            let why = format!(
                "{} is for structs and unions: most bytes are no value of an enum. Keep its discriminant as an integer",
                which.name()
            );
            return Err(Error::new(data.enum_token.span(), why));
        }
    };
    let name = &input.ident;
    let trait_name = Ident::new(which.name(), Span::call_site());
    let mut generics = input.generics.clone();
    let parameters: Vec<String> =
        generics.type_params().map(|parameter| parameter.ident.to_string()).collect();
    if !parameters.is_empty() {
        // `Copy` of a derived type asks more of its parameters than its fields may.
        generics.make_where_clause().predicates.push(parse_quote!(Self: ::core::marker::Copy));
    }
    for (_, ty) in &fields {
        // A bound that depends on no parameter would hide from the reader which field does not qualify; the body of
        // `is_valid` tells. `PointerFree` has no body.
        if which == Trait::PointerFree || mentions(ty.to_token_stream(), &parameters) {
            let bound = parse_quote_spanned!(ty.span()=> #ty: #root::#trait_name);
            generics.make_where_clause().predicates.push(bound);
        }
    }
    let (impl_generics, type_generics, clause) = generics.split_for_impl();
    let body = match which {
        Trait::PointerFree => TokenStream::new(),
        Trait::DeviceCopy => items(&root, &fields, union),
    };
    Ok(quote! {
        // SAFETY: every field owns nothing and asks nothing but its own validity, which `is_valid` checks.
        #[automatically_derived]
        #[allow(trivial_bounds, clippy::undocumented_unsafe_blocks)]
        unsafe impl #impl_generics #root::#trait_name for #name #type_generics #clause {
            #body
        }
    })
}

/// `NO_PADDING` and `is_valid`.
fn items(root: &Path, fields: &[(Member, &Type)], union: bool) -> TokenStream {
    let types: Vec<TokenStream> = fields
        .iter()
        .map(|(_, ty)| {
            // Errors show the field; the tokens stay ours, so that a crate may forbid unsafe code.
            let here = Span::call_site().located_at(ty.span());
            quote_spanned!(here=> <#ty as #root::DeviceCopy>)
        })
        .collect();
    if union {
        return quote! {
            unsafe fn is_valid(_value: *const Self) -> bool {
                // Any bytes are a valid union; the fields still have to qualify.
                #(let _: unsafe fn(*const _) -> bool = #types::is_valid;)*
                true
            }
        };
    }
    let plain: Vec<&Type> = fields.iter().map(|(_, ty)| *ty).collect();
    let checks = fields.iter().zip(&types).map(|((member, ty), qualified)| {
        quote! {
            && {
                let mut part = ::core::mem::MaybeUninit::<#ty>::uninit();
                // SAFETY: the field lies inside the value that the caller vouches for. It is copied as bytes, since it
                // may be misaligned in a packed type.
                unsafe {
                    ::core::ptr::copy_nonoverlapping(
                        (&raw const (*value).#member).cast::<::core::mem::MaybeUninit<u8>>(),
                        part.as_mut_ptr().cast::<::core::mem::MaybeUninit<u8>>(),
                        ::core::mem::size_of::<#ty>(),
                    );
                    #qualified::is_valid(part.as_ptr())
                }
            }
        }
    });
    quote! {
        const NO_PADDING: bool = true
            #(&& #types::NO_PADDING)*
            && 0 #(+ ::core::mem::size_of::<#plain>())* == ::core::mem::size_of::<Self>();

        unsafe fn is_valid(value: *const Self) -> bool {
            let _ = value;
            true #(#checks)*
        }
    }
}

fn named(fields: &Fields) -> Vec<(Member, &Type)> {
    fields.members().zip(fields.iter().map(|field| &field.ty)).collect()
}

/// Whether the tokens of a type contain one of these names. A name that only looks like a parameter gives a bound too
/// many, which then holds or fails with the field itself.
fn mentions(tokens: TokenStream, names: &[String]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => names.iter().any(|name| ident == name),
        TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

/// Where the traits are: `::simtile`, or what `#[device_copy(crate = path)]` says.
fn root(input: &DeriveInput) -> Result<Path> {
    let mut root: Path = parse_quote!(::simtile);
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("device_copy")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("crate") {
                root = meta.value()?.call(Path::parse_mod_style)?;
                Ok(())
            } else {
                Err(meta.error("the one setting is `crate = path`"))
            }
        })?;
    }
    Ok(root)
}
